"""The result of a check: OK, WARN or FAIL, the reason, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from launcher.core.problems import Problem

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class CheckResult:
    """One line of a plan."""

    level: Level
    subject: str
    """The setting or the thing that was looked at: `data.train_batch_size`, `disk`, `port 29500`."""
    message: str
    fix: str = ""
    """What to use instead; empty where nothing is wrong."""

    @property
    def line(self) -> str:
        """`subject: message; fix`, as all problems are written."""
        return f"{self.subject}: {self.message}" + (f"; {self.fix}" if self.fix else "")


def from_problems(problems: Iterable[Problem], level: Level = "FAIL") -> list[CheckResult]:
    return [CheckResult(level, problem.where or "run", problem.got, problem.fix) for problem in problems]


def any_failed(results: Iterable[CheckResult]) -> bool:
    return any(result.level == "FAIL" for result in results)
