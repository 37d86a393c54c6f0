"""These tests register a device with torch, for the whole process, so they run by themselves: `make test-device`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out of a run of other tests, too."""
    asked = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    return None if all(path.resolve().is_relative_to(HERE) for path in asked) else True


@dataclass(frozen=True)
class Figures:
    """What a run on the device showed."""

    run: str
    difference: float
    """The largest relative difference from the run on the CPU."""
    meetings: int
    syncs: int
    """Host synchronisations of one training step."""
    peak_bytes: int


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> list[Figures]:
    """Its rows are printed after the tests."""
    return pytestconfig.stash.setdefault(TABLE, [])


TABLE = pytest.StashKey[list[Figures]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(TABLE, [])
    if not rows:
        return
    width = max(len(row.run) for row in rows)
    terminalreporter.section("the pretend device against the CPU")
    terminalreporter.write_line(f"{'run':{width}}  difference  meetings  syncs a step  peak KB")
    for row in rows:
        terminalreporter.write_line(
            f"{row.run:{width}}  {row.difference:10.1e}  {row.meetings:8}  {row.syncs:12}  {row.peak_bytes / 1000:7.0f}"
        )


sys.path.insert(0, str(HERE))  # for `pretend` and `twins`, as tests are no package
