"""A run that another process writes, watched until its job has left the queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.core.events import Ended, Event, LoggedEvent, Resumed, Saved, Started, Step, to_line
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState
from launcher.launch import job, queue
from launcher.launch.queue import QueueWatcher
from launcher.runs import store
from launcher.runs.folder import Folder

BEGUN = Started(at=1.0, run="p/r", algorithm="SFT", processes=1)
ONE, TWO = (Step(at=1.0 + n, step=n, metrics={"train/loss": 1.0}) for n in (1, 2))
SAVED = Saved(at=2.5, step=1, path="checkpoints/step_000001")


@dataclass
class SlurmQueue:
    """Says one thing after the other; then the run has left."""

    answers: list[str]
    asked: int = 0
    stopped: bool = False
    name: str = "slurm job 12"
    log: Path = Path("job.log")

    def queue_status(self) -> str:
        self.asked += 1
        if not self.answers:
            return ""
        output = self.answers.pop(0)
        if output == "!":
            raise Problems(Problem("squeue", "did not answer"))
        return output

    def stop(self, now: bool) -> None:
        raise AssertionError("watching stops nothing")


class Shown:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lines: list[str] = []
        self.state = RunState()

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        self.events += [logged.event for logged in events]
        self.lines += lines
        self.state = state

    def close(self) -> None:
        raise AssertionError("it belongs to who made it")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LOOK_S", 0.01)
    monkeypatch.setattr(queue, "ASK_S", 0.02)


def write(folder: Folder, *events: Event) -> None:
    folder.events.write_text("".join(to_line(event) + "\n" for event in events))


def watched(tmp_path: Path, waiting: SlurmQueue, *events: Event) -> tuple[int, Shown]:
    folder, shown = Folder(tmp_path), Shown()
    if events:
        write(folder, *events)
    return QueueWatcher(folder, waiting, [shown]).wait_until_left_queue().exit_code, shown


@pytest.mark.parametrize(
    ("last", "stopped", "code", "status"),
    [
        ([Ended(at=9.0, how="finished")], False, 0, "finished"),
        ([Ended(at=9.0, how="failed", why="x")], False, 1, "failed"),
        ([Ended(at=9.0, how="stopped")], False, 143, "stopped"),
        ([], False, 1, "failed"),  # its node died, and Slurm took it for done
        ([], True, 143, "stopped"),  # it was cancelled before it could say so
    ],
)
def test_how_it_ended(tmp_path: Path, last: list[Event], stopped: bool, code: int, status: str) -> None:
    queue = SlurmQueue(["pending (Resources)", "!", "running on n"], stopped=stopped)
    found, shown = watched(tmp_path, queue, BEGUN, ONE, *last)
    assert found == code and [type(event) for event in shown.events] == [Started, Step, *map(type, last)]
    assert shown.lines[0] == "slurm job 12: pending (Resources)", "a wait is told"
    assert "squeue: did not answer" in shown.lines or status == "finished"


def test_events_are_read_from_any_number_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert job.tail(folder) == []
    write(folder, BEGUN, ONE, SAVED, TWO)
    assert [logged.event for logged in job.tail(folder)] == [BEGUN, ONE, SAVED, TWO]
    assert [logged.event for logged in job.tail(folder, after_seq=1)] == [SAVED, TWO]


def test_steps_that_are_taken_back_are_told_again(tmp_path: Path, until: Callable[..., None]) -> None:
    """A run that goes back to its checkpoint says so in its log."""
    folder, shown, queue = Folder(tmp_path), Shown(), SlurmQueue(["running on n"] * 10_000)
    write(folder, BEGUN, ONE, SAVED, TWO)
    thread = threading.Thread(target=QueueWatcher(folder, queue, [shown]).wait_until_left_queue)
    thread.start()
    until(lambda: shown.state.step == 2, 5)
    with folder.events.open("a") as log:
        log.write(to_line(Resumed(step=1, attempt=2)) + "\n")
        log.flush()
        until(lambda: shown.state.step == 1, 5)
        log.write(to_line(TWO) + "\n" + to_line(Ended(at=9.0, how="finished")) + "\n")
    thread.join(10)
    assert not thread.is_alive(), "a run that is finished is not waited for in the queue"
    assert shown.state.status == "finished" and shown.state.step == 2


def run_of(tmp_path: Path, *events: Event) -> Folder:
    folder = Folder(tmp_path / "runs" / "p" / "r")
    (folder.path / "slurm").mkdir(parents=True)
    (folder.path / "slurm" / "job.json").write_text('{"id": "12"}')
    folder.spec.touch()
    write(folder, *events)
    return folder


@pytest.mark.parametrize(
    ("events", "standing", "status"),
    [
        ([], "PENDING|Resources|", "waiting"),
        ([BEGUN, ONE, Ended(at=9.0, how="stopped")], "PENDING|BeginTime|", "waiting"),  # it had to leave, and waits
        ([BEGUN, ONE], "RUNNING|None|n", "waiting"),  # its process on the node has not taken it up yet
        ([BEGUN, ONE], "", "failed"),  # it has left the queue, and nobody writes it
        ([BEGUN, Ended(at=9.0, how="finished")], "COMPLETING|None|n", "finished"),
    ],
)
def test_the_list_of_runs_knows_the_queue(
    events: list[Event], standing: str, status: str, tmp_path: Path, fake_slurm: Path
) -> None:
    (fake_slurm / "standing").write_text(standing)
    state = store.see(run_of(tmp_path, *events)).state
    assert state.status == status
    assert ("slurm job 12, " in state.why) == (status == "waiting")


def test_stop_asks_the_queue(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "standing").write_text("PENDING|Resources|")
    folder, began = run_of(tmp_path), time.monotonic()
    assert store.stop(folder, now=False) == "stopped, and slurm job 12 has left the queue"
    assert (folder.path / "slurm" / "stop").exists() and time.monotonic() - began < 60
    assert store.stop(folder, now=False) == "was not running"
