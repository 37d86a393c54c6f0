"""What is known of a launch beside its config, and what a rule says of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from launcher.core.problems import Code, Problem, conflict
from launcher.spec.engine import RunFacts
from launcher.spec.model import Architecture


@dataclass(frozen=True)
class LaunchFacts:
    """Facts about data, model and environment; None is unknown, and not judged."""

    run: RunFacts = field(default_factory=lambda: RunFacts(Path(), here=True))
    """What a plan has found about the rows."""
    shape: Architecture | None = None
    packages: frozenset[str] | None = None
    """Names that can be imported in the environment that runs verl."""


@dataclass(frozen=True)
class RuleResult:
    """A problem, and whether the run fails of it."""

    level: Literal["FAIL", "WARN"]
    problem: Problem


Results = Iterator[RuleResult]


def fails(where: str, got: str, fix: str | Sequence[int] = "", code: Code = "conflicting-settings") -> RuleResult:
    """The run ends, or hangs, or trains on something else; numbers as `fix` are values to use instead."""
    return RuleResult("FAIL", replace(conflict(where, got, fix), code=code))


def warns(where: str, got: str, fix: str, code: Code = "conflicting-settings") -> RuleResult:
    """The run continues, but probably not as it was meant."""
    return RuleResult("WARN", Problem(where, got, fix, code))
