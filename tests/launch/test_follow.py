"""One loop hears everything: what it writes down, and what it takes for a sign of life."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Stalled, Usage, WentOn, events_of
from launcher.core.problems import Problems
from launcher.launch import disk_watch
from launcher.launch.disk_watch import FULL_S, NO_ROOM, RESERVE, DiskWatch
from launcher.launch.follow import Follower, follow
from launcher.monitor import stall
from launcher.monitor.agents import trend_line
from launcher.monitor.stall import StallDetector
from launcher.runs.folder import Folder
from launcher.runs.stop_requests import StopRequest
from launcher.views.read import run_in
from launcher.views.samples import evaluations_of
from tests.launch.conftest import Scripted
from tests.monitor.test_agents import JSON, example

RUN = resolve(["algorithm=sft", "model=tiny", "data=reverse"])


class Silent(Scripted):
    """A process that uses CPU and says nothing, until it was looked at so often."""

    looks = 0

    def __init__(self, most: int) -> None:
        self.most = most

    def lines(self) -> list[str]:
        return []

    def exit_code(self) -> int | None:
        self.looks += 1
        return 0 if self.looks > self.most else None

    def usage(self) -> list[Usage]:
        return [Usage(rank=0, host="h", cpu_percent=100.0, memory_bytes=1, machine_cpu_percent=50.0,
                      machine_memory_bytes=2, machine_memory_total_bytes=4, disk_free_bytes=None)]  # fmt: skip


def test_what_a_process_uses_is_no_sign_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that spins for ever in a deadlock is told of again and again, and is named all the same."""
    monkeypatch.setattr(stall, "UNKNOWN_S", 0.2)
    folder, job = Folder(tmp_path), Silent(16)
    with closing(Follower(RUN, folder, [], 1)) as follower:
        watch = StallDetector(2.0, 0.0, [], time.monotonic())
        assert follow(job, follower, watch, StopRequest(job, folder)) == 0
        state = follower.state
    told = list(events_of(folder.events))
    assert sum(isinstance(event, Stalled) for event in told) == 1
    assert not [event for event in told if isinstance(event, WentOn)]
    assert state.stalled and state.usage[0].cpu_percent == 100.0
    assert (tmp_path / "console.log").read_text().count("\n") == 1, "and what is used is no line for a person"


def test_a_full_disk_is_named_at_once_and_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"bytes": 2**30}
    monkeypatch.setattr(disk_watch, "free_disk_bytes", lambda path: free["bytes"])
    watch, reserve = DiskWatch(Folder(tmp_path)), tmp_path / "reserve"
    assert watch.look(0.0) == [] and reserve.stat().st_size == RESERVE
    free["bytes"] = 0
    assert [event.text for event in watch.look(1.0)] == [NO_ROOM]
    assert watch.look(1.0 + FULL_S) == [] and reserve.exists() and not watch.gave_up
    free["bytes"] = 2**30
    assert [event.text for event in watch.look(40.0)] == [""], "it goes on"
    free["bytes"] = 0
    assert len(watch.look(50.0)) == 1
    assert watch.look(51.0 + FULL_S) == [] and watch.gave_up and not reserve.exists()
    assert not watch.is_over(51.0 + FULL_S) and watch.is_over(53.0 + FULL_S)


def test_evaluations_of_an_agent_are_files_of_which_the_newest_are_kept(tmp_path: Path) -> None:
    """S3-04: eval_logs/eval_step_0010.json. S3-19: a setting bounds the folder. The order is that of the numbers, also
    where one has five digits."""
    steps, run = (9_990, 10_000, 10_010), replace(RUN, trainer=replace(RUN.trainer, keep_eval_logs=2))
    folder = Folder(tmp_path)
    with closing(Follower(RUN, folder, [], 1)) as follower:
        follower.tell([replace(example(), rewards=(0.5,) * 100), example()])
    assert (tmp_path / "eval_logs" / "eval_step_0010.json").read_text() == JSON
    assert f"Eval stats saved to: {tmp_path}/eval_logs/eval_step_0010.json" in (tmp_path / "console.log").read_text()
    with closing(Follower(run, folder, [], 1)) as follower:
        follower.tell([replace(example(), step=step) for step in steps])
    names = [path.name for path in (tmp_path / "eval_logs").iterdir()]
    assert sorted(names) == ["eval_step_10000.json", "eval_step_10010.json"]
    trend = [trend_line(each) for each in evaluations_of(run_in(folder))]
    assert [line[:10] for line in trend] == ["Step   10:", "Step   10:", "Step 9990:", "Step 10000", "Step 10010"]
    (tmp_path / "eval_logs").rename(tmp_path / "elsewhere")
    (tmp_path / "eval_logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Problems, match="is a link"):
        folder.check()
