"""One loop hears everything: what it writes down, and what it takes for a sign of life."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Event, Stalled, Usage, WentOn, events_of
from launcher.engines.torch import Torch
from launcher.launch.follow import Follower, follow
from launcher.monitor import stall
from launcher.monitor.stall import StallDetector
from launcher.runs.folder import Folder
from launcher.runs.stop_requests import StopRequest
from launcher.spec.cluster import Stack

RUN = resolve(["algorithm=sft", "model=tiny", "data=reverse"])


def usage(rank: int) -> Usage:
    return Usage(
        rank=rank, host="h", cpu_percent=100.0, memory_bytes=1, machine_cpu_percent=50.0, machine_memory_bytes=2,
        machine_memory_total_bytes=4, disk_free_bytes=None,
    )  # fmt: skip


class Silent:
    """A process that uses CPU and says nothing, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def lines(self) -> list[str]:
        return []

    def exit_code(self) -> int | None:
        return 0 if time.monotonic() > self.until else None

    def failed_rank(self) -> int | None:
        return None

    def poll_events(self) -> list[Event]:
        return []

    def lost_resources(self) -> str:
        return ""

    def stacks(self, wait_s: float) -> list[Stack]:
        return []

    def usage(self) -> list[Usage]:
        return [usage(0)]

    def stop(self, number: int) -> None:
        raise AssertionError("nobody asked")

    def kill(self) -> None:
        raise AssertionError("nobody asked")


def test_what_a_process_uses_is_no_sign_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that spins for ever in a deadlock is told of again and again, and is named all the same."""
    monkeypatch.setattr(stall, "UNKNOWN_S", 0.2)
    folder, job = Folder(tmp_path), Silent(0.8)
    with closing(Follower(RUN, folder, [], 1)) as follower:
        assert (
            follow(
                job, Torch().reader(), follower, StallDetector(2.0, 0.0, [], time.monotonic()), StopRequest(job, folder)
            )
            == 0
        )
        state = follower.state
    told = list(events_of(folder.events))
    assert sum(isinstance(event, Stalled) for event in told) == 1
    assert not [event for event in told if isinstance(event, WentOn)]
    assert state.stalled and state.usage[0].cpu_percent == 100.0
    assert (tmp_path / "console.log").read_text().count("\n") == 1, "and what is used is no line for a person"
