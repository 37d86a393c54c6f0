"""Checks this machine before a run is started on it; each file looks at one thing.

The answers are `CheckResult`s: OK, WARN or FAIL, the reason, what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.problems import OnMessage
from launcher.preflight.checks import packages
from launcher.tools.doctor import loading, system


def check_machine(root: Path, say: OnMessage) -> Iterator[CheckResult]:
    """Every result, as soon as it is known. `root` is the folder that holds runs."""
    say("looking at this machine")
    yield from packages.check_packages()
    yield from system.check_system()
    yield from system.check_folders(root, say)
    say("loading torch")
    yield from loading.check(loading.load_libraries(), machine.query_gpus())
