"""What a check says beforehand: OK, WARN or FAIL, the reason, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from launcher.core.problems import Problem

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Verdict:
    """One line of a plan, or of the doctor."""

    level: Level
    what: str
    """The setting or the thing that was looked at: `data.train_batch_size`, `disk`, `port 29500`."""
    says: str
    mend: str = ""
    """What would do; empty where nothing is to mend."""

    @property
    def line(self) -> str:
        """`what: says; mend`, as all problems are written."""
        return f"{self.what}: {self.says}" + (f"; {self.mend}" if self.mend else "")


def of_problem(problem: Problem | str, level: Level = "FAIL") -> Verdict:
    """A problem as a verdict; of a text, its parts (`where: what came; what would do`)."""
    if isinstance(problem, Problem):
        if problem.where:
            return Verdict(level, problem.where, problem.got, problem.fix)
        problem = problem.got
    what, colon, rest = problem.partition(": ")
    if not colon:
        what, rest = "run", problem
    says, _, mend = rest.rpartition("; ")
    return Verdict(level, what, says or mend, mend if says else "")


def of_problems(problems: Iterable[Problem | str], level: Level = "FAIL") -> list[Verdict]:
    return [of_problem(problem, level) for problem in problems]


def failed(verdicts: Iterable[Verdict]) -> bool:
    return any(verdict.level == "FAIL" for verdict in verdicts)
