"""What is checked before a run starts. A new check is a file here with `check(context)`, and its entry in `CHECKS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from launcher.core.check_result import CheckResult
from launcher.preflight.checks import (
    disk,
    hardware,
    history,
    memory,
    model,
    own,
    packages,
    reward,
    rows,
    settings,
    steps,
)
from launcher.preflight.checks.context import Context

CHECKS: list[Callable[[Context], Iterable[CheckResult]]] = [
    settings.check,
    model.check,
    rows.check,
    reward.check,
    steps.check,
    memory.check,
    hardware.check,
    disk.check,
    history.check,
    packages.check,
    own.check,
]
"""In the order in which a plan shows their results. None assumes that another has passed."""


def run_checks(context: Context) -> Iterator[CheckResult]:
    for check in CHECKS:
        yield from check(context)
