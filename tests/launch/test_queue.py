"""A run that another process writes, watched until its job has left the queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.events import Ended, Event, LoggedEvent, Saved, Started, Step, to_line
from launcher.core.state import RunState
from launcher.launch import job
from launcher.launch.queue import submit_and_follow
from launcher.runs import store
from launcher.runs.folder import Folder

BEGUN = Started(at=1.0, run="p/r", algorithm="SFT", processes=1)
ONE, TWO = (Step(at=1.0 + n, step=n, metrics={"train/loss": 1.0}) for n in (1, 2))
SAVED = Saved(at=2.5, step=1, path="checkpoints/step_000001")


class Shown:
    """What is shown; each wait that is told makes the queue say the next of `standings`, after the last it has left."""

    def __init__(self, standing: Path, standings: Sequence[str] = ()) -> None:
        self.standing, self.coming, self.state = standing, iter(standings), RunState()
        self.events, self.lines = list[Event](), list[str]()
        self.go_on()

    def go_on(self) -> None:
        printed = next(self.coming, None)
        self.standing.write_text(printed) if printed else self.standing.unlink(missing_ok=True)

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        self.events += [logged.event for logged in events]
        self.lines += lines
        self.state = state
        if any(line.startswith("slurm job 12, ") for line in lines):
            self.go_on()

    def close(self) -> None:
        raise AssertionError("it belongs to who made it")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOOK_S", 0.01)
    monkeypatch.setattr(store, "ASK_S", 0.02)


def run_of(tmp_path: Path, *events: Event) -> Folder:
    folder = Folder(tmp_path / "runs" / "p" / "r")
    (folder.path / "slurm").mkdir(parents=True)
    (folder.path / "slurm" / "job.json").write_text('{"id": "12"}')
    folder.spec.touch()
    folder.events.write_text("".join(to_line(event) + "\n" for event in events))
    return folder


def test_a_run_is_watched_until_it_has_left_the_queue(tmp_path: Path, fake_slurm: Path) -> None:
    shown = Shown(fake_slurm / "standing", ["PENDING|Resources|", "RUNNING|None|n"])
    assert store.watch(run_of(tmp_path, BEGUN, ONE), [shown]) == shown.state
    assert (shown.state.status, shown.events) == ("failed", [BEGUN, ONE]), "its node died"
    waits = [line for line in shown.lines if line.startswith("slurm job")]
    assert waits == ["slurm job 12, pending (Resources)", "slurm job 12, running on n"]


def test_a_queue_that_does_not_answer_is_asked_again(tmp_path: Path, fake_slurm: Path) -> None:
    standing = fake_slurm / "standing"
    standing.mkdir()  # which no script can print

    class Running(Shown):
        def go_on(self) -> None:
            if self.lines:
                standing.rmdir()

    shown = Running(standing, [])
    assert store.watch(run_of(tmp_path), [shown]).status == "failed"
    assert shown.lines == ["slurm job 12, in a queue that does not answer"]


def test_ctrl_c_ends_the_watching_and_not_the_run(tmp_path: Path, fake_slurm: Path) -> None:
    class Interrupted(Shown):
        def go_on(self) -> None:
            if self.lines:
                raise KeyboardInterrupt

    run = resolve(["algorithm=sft", "model=tiny", "data=reverse", "cluster=slurm"])
    folder = run_of(tmp_path, BEGUN, ONE)
    (fake_slurm / "standing").write_text("PENDING|Resources|")
    shown = Interrupted(fake_slurm / "standing", [])
    outcome = submit_and_follow(run, folder, [shown])
    assert (outcome.exit_code, outcome.state) == (130, shown.state)
    assert (shown.state.status, shown.state.step, shown.state.why) == ("waiting", 1, ""), "as it stands now"
    assert shown.lines[-1] == f"slurm job 12 continues; rlrun stop {folder.path} would end it"


def test_events_are_read_from_any_number_on(tmp_path: Path) -> None:
    assert job.tail(Folder(tmp_path)) == []
    folder = run_of(tmp_path, BEGUN, ONE, SAVED, TWO)
    assert [logged.event for logged in job.tail(folder)] == [BEGUN, ONE, SAVED, TWO]
    assert [logged.event for logged in job.tail(folder, after_seq=1)] == [SAVED, TWO]


@pytest.mark.parametrize(
    ("events", "standing", "status", "why"),
    [
        ([], "PENDING|Resources|", "waiting", ""),
        ([BEGUN, ONE, Ended(at=9.0, how="stopped")], "PENDING|BeginTime|", "waiting", ""),  # it had to leave, and waits
        ([BEGUN, ONE], "RUNNING|None|n", "waiting", ""),  # its process on the node has not taken it up yet
        ([BEGUN, ONE], "", "failed", "has left the queue before the run ended; see"),  # its node died
        ([BEGUN, ONE, Ended(at=9.0, how="failed", why="x")], "", "failed", "x"),
        ([BEGUN, ONE], "stopped", "stopped", ""),  # it was cancelled before it could say so
        ([BEGUN, Ended(at=9.0, how="finished")], "COMPLETING|None|n", "finished", ""),
    ],
)
def test_the_list_of_runs_knows_the_queue(
    events: list[Event], standing: str, status: str, why: str, tmp_path: Path, fake_slurm: Path
) -> None:
    folder = run_of(tmp_path, *events)
    if standing == "stopped":
        (folder.path / "slurm" / "stop").touch()
    else:
        (fake_slurm / "standing").write_text(standing)
    state = store.see(folder).state
    assert state.status == status and why in state.why
    assert ("slurm job 12, " in state.why) == (status == "waiting")


def test_stop_asks_the_queue(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "standing").write_text("PENDING|Resources|")
    folder, began = run_of(tmp_path), time.monotonic()
    assert store.stop(folder, now=False) == "stopped, and slurm job 12 has left the queue"
    assert (folder.path / "slurm" / "stop").exists() and time.monotonic() - began < 60
    assert store.stop(folder, now=False) == "was not running"
