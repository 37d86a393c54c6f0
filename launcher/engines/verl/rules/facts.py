"""What is known of a launch beside its config, and what a rule says of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.core.problems import Code, Problem
from launcher.spec.engine import RunFacts
from launcher.spec.model import Architecture


@dataclass(frozen=True)
class LaunchFacts:
    """Facts about data, model and environment; None is unknown, and not judged."""

    run: RunFacts = field(default_factory=lambda: RunFacts(Path(), here=True))
    """What a plan has found about the rows."""
    reward_keys: frozenset[str] | None = None
    """Keys of the dict that the user's reward function returns; None where it returns a number."""
    unaccepted: tuple[str, ...] = ()
    """Arguments that verl gives to the user's reward function, and that it does not take."""
    shape: Architecture | None = None
    visible_gpus: int | None = None
    """GPUs of this machine that the run sees, where it sets CUDA_VISIBLE_DEVICES."""
    checkpoint_world: int | None = None
    """Processes that wrote the checkpoint that is resumed from."""
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
    if isinstance(fix, str):
        return RuleResult("FAIL", Problem(where, got, fix, code))
    text = f"use {' or '.join(map(str, fix))}" if fix else ""
    return RuleResult("FAIL", Problem(where, got, text, code, value=next(iter(fix), None)))


def warns(where: str, got: str, fix: str, code: Code = "conflicting-settings") -> RuleResult:
    """The run continues, but probably not as it was meant."""
    return RuleResult("WARN", Problem(where, got, fix, code))
