"""A run on a cluster that is told how each attempt goes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core import checkpoints
from launcher.core.events import MARK, Crashed, Event, Started, Step, events_of, to_line
from launcher.core.problems import Problems
from launcher.core.settings import settings
from launcher.core.state import RunState, fold
from launcher.launch import supervise
from launcher.launch.follow import Outcome
from launcher.launch.supervise import Supervisor, pause_s
from launcher.runs.folder import Folder, Lock, read_attempts
from launcher.runs.stop_requests import handle_signals
from launcher.spec.cluster import Cluster, Job, Stack
from launcher.spec.engine import Plan


def events(run: Path, *kinds: type) -> list[Any]:
    """Those of these kinds that stand."""
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, kinds)]


def state_of(run: Path) -> RunState:
    return fold(events_of(run / "events.jsonl"))


def check_printed(printed: list[str], run: Path) -> None:
    """What is printed is console.log, with a short line for those of a step."""
    log = (run / "console.log").read_text().splitlines()
    written = [line for line in log if not line.startswith(("Training Progress", "Step "))]
    assert len(printed) == len(written)
    for short, line in zip(printed, written, strict=True):
        assert short == line or short.startswith(f"step {line.partition(' ')[0].removeprefix('step:')}/")


def steps_told(run: Path) -> int:
    """How many steps were ever written down; it costs little while the run goes on."""
    log = run / "events.jsonl"
    return log.read_bytes().count(b'"kind":"Step"') if log.exists() else 0


@dataclass
class Attempt:
    """How one goes: the steps that it trains after the one it begins with, the checkpoints among them, and its end."""

    steps: int = 0
    saves: tuple[int, ...] = ()
    code: int = 0
    crash: Crashed | None = None
    lost: str = ""
    refused: list[str] = field(default_factory=list)
    during: Callable[[Path], None] = lambda run: None


class Scripted(Job):
    """Its processes have told everything at once, and end when they are looked at for the second time."""

    def __init__(self, attempt: Attempt, folder: Folder, logs: Path, begin: int) -> None:
        self.attempt, self.run, self.looks, self.asked = attempt, folder.path, 0, list[int]()
        told: list[Event] = [] if begin else [Started(run="p/\u2028a", algorithm="SFT", processes=1)]
        told += [Step(step=begin + number, metrics={"train/loss": 1.0}) for number in range(1, attempt.steps + 1)]
        told += [attempt.crash] if attempt.crash else []
        self.told = [f"{MARK}{to_line(event)}" for event in told]
        (logs / "rank-0.log").write_text("".join(line + "\n" for line in self.told))
        for step in attempt.saves:
            checkpoints.write(folder.checkpoints, step, lambda draft: (draft / "x").write_text("x"))

    def lines(self) -> list[str]:
        told, self.told = self.told, []
        return told

    def exit_code(self) -> int | None:
        self.looks += 1
        if self.looks == 2:
            self.attempt.during(self.run)
        return None if self.looks < 3 else 128 + self.asked[0] if self.asked else self.attempt.code

    def failed_rank(self) -> int | None:
        return 0 if self.attempt.code and not self.attempt.lost else None

    def lost_resources(self) -> str:
        return self.attempt.lost

    def stacks(self, wait_s: float) -> list[Stack]:
        return []

    def stop(self, number: int) -> None:
        self.asked.append(number)

    def kill(self) -> None:
        if self.looks < 3:  # else it has ended
            self.asked.append(signal.SIGKILL)


SCRIPT: list[Attempt] = []
resolved = cache(lambda *words: resolve(["algorithm=sft", "model=tiny", "data=reverse", *words]))


@settings
class ScriptedCluster(Cluster):
    """Goes as SCRIPT says."""

    def start(self, plan: Plan, logs: Path, lock: int) -> Scripted:
        attempt = SCRIPT.pop(0)
        if attempt.refused:
            raise Problems(attempt.refused)
        folder, begin = plan.processes[0].argv[-2:]
        return Scripted(attempt, Folder(Path(folder)), logs, int(begin))


@dataclass
class Ran:
    outcome: Outcome
    folder: Folder
    pauses: list[float]
    resumed: Callable[[dict[str, Any]], Outcome]
    """Goes on from the newest checkpoint, with one more attempt."""

    def told(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in events_of(self.folder.events) if isinstance(event, kinds)]

    @property
    def steps(self) -> list[int]:
        return [event.step for event in self.told(Step) if isinstance(event, Step)]

    @property
    def causes(self) -> list[str]:
        return [attempt.cause for attempt in read_attempts(self.folder)]


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ran]]:
    """A run whose attempts go like that, and which may be restarted so many times; pauses take no time."""

    def go(script: list[dict[str, Any]], most: int = 3, words: Sequence[str] = ()) -> Ran:
        SCRIPT[:] = [Attempt(**each) for each in script]
        run = replace(resolved(f"trainer.max_restarts={most}", *words), cluster=ScriptedCluster())
        folder, pauses = Folder(tmp_path / "p" / "a"), list[float]()
        folder.path.mkdir(parents=True)
        (folder.path / "lock.json").write_text(json.dumps({"data": run.data.fingerprint()}))
        folder.events.write_text("")

        def at_once(restarts: int) -> float:
            pauses.append(pause_s(restarts))
            return 0.0

        monkeypatch.setattr(supervise, "pause_s", at_once)

        def work(step: int) -> Outcome:
            with Lock(folder) as lock:
                return Supervisor(run, folder, lock, [], handle_signals).work(step, [])

        def resumed(attempt: dict[str, Any]) -> Outcome:
            SCRIPT[:] = [Attempt(**attempt)]
            return work(supervise.step_of(supervise.newest_checkpoint(folder)[0]))

        return Ran(work(0), folder, pauses, resumed)

    yield go
    assert SCRIPT == [], "every attempt was made"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Of a new run."""
    path = tmp_path / "runs" / "p" / "a"
    path.mkdir(parents=True)
    return Folder(path)


@pytest.fixture
def rlrun(tmp_path: Path, commands: Any) -> Iterator[Any]:
    """`rlrun` in a folder of its own, whose runs end with the test."""
    made = commands(tmp_path)
    yield made
    for lock in tmp_path.glob("runs/*/*/.lock"):
        made.here("stop", "--now", str(lock.parent))


@pytest.fixture(scope="session")
def home(trained: tuple[Any, Path], commands: Any) -> Any:
    """`rlrun` in a folder that the runs of all tests share."""
    return commands(trained[1].parents[2])
