"""The only writer of a run's events: it hears the processes, writes down what happens, and shows it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from launcher.checkpoints import name_of
from launcher.events import Crashed, Ended, Event, events_of, to_line
from launcher.files import Log
from launcher.launch.folder import Folder
from launcher.monitor.lines import console_lines
from launcher.spec.cluster import Job
from launcher.spec.engine import Engine
from launcher.state import RunState, after, fold

POLL_S = 0.05
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Show = Callable[[RunState, list[Event], list[str]], None]
"""Is told the state, the events that led to it, and their console lines; also without any, to keep a clock going."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    state: RunState
    crash: Crashed | None = None


class Follower:
    """From lines of rank 0 to events.jsonl, console.log and the screen."""

    def __init__(self, folder: Folder, engine: Engine, show: Show) -> None:
        self.engine, self.show = engine, show
        self.state = fold(events_of(folder.events))
        self._events, self._console = Log.open(folder.events), Log.open(folder.console)
        self.crash: Crashed | None = None

    def hear(self, lines: list[str]) -> None:
        self.tell([event for line in lines for event in self.engine.read(line)])

    def tell(self, events: list[Event]) -> None:
        """Write events down, then show them."""
        shown: list[str] = []
        for event in events:
            self._events.append(to_line(event))
            self.state = after(self.state, event)
            shown += console_lines(event, self.state)
            if isinstance(event, Crashed):
                self.crash = event
        for line in shown:
            self._console.append(line)
        self.show(self.state, events, shown)

    def close(self) -> None:
        self._events.close()
        self._console.close()


def follow(job: Job, folder: Folder, engine: Engine, logs: Path, show: Show) -> Outcome:
    """Until all processes have ended. The first signal asks them to save and end, the second ends them at once."""
    follower = Follower(folder, engine, show)
    with heeding(job) as asked:
        while (code := job.exit_code()) is None:
            follower.hear(job.lines())
            time.sleep(POLL_S)
        follower.hear(job.lines())
    if code and job.failed_rank():  # rank 0 tells for itself; what it says now follows from the other's end
        follower.crash = _crash_of(job.failed_rank(), engine, logs)
    outcome = _outcome(code, asked, follower, job.failed_rank(), logs)
    follower.close()
    return outcome


class Stoppable(Protocol):
    def stop(self, number: int) -> None:
        """Ask to save and end."""

    def kill(self) -> None:
        """End at once."""


@contextmanager
def heeding(job: Stoppable) -> Iterator[list[int]]:
    """The first signal stops `job`, any other kills it; what came is in the list."""
    asked: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            job.stop(number)
        else:
            job.kill()

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _crash_of(rank: int | None, engine: Engine, logs: Path) -> Crashed | None:
    """What a process that is not rank 0 said last."""
    log = logs / f"rank-{rank}.log"
    if rank is None or not log.exists():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((event for line in reversed(lines) for event in engine.read(line) if isinstance(event, Crashed)), None)


def _outcome(code: int, asked: list[int], follower: Follower, rank: int | None, logs: Path) -> Outcome:
    """How it ended, told as the last event."""
    state, crash = follower.state, follower.crash
    saved = f"{state.checkpoint} is the newest checkpoint" if state.checkpoint else "nothing is saved yet"
    if code == 0:
        unsaved = state.step > 0 and not state.checkpoint.endswith(name_of(state.step))
        ended, exit_code = Ended(how="finished", why=f"the last step is not saved; {saved}" if unsaved else ""), 0
    elif asked:
        how = "" if code == 128 + asked[0] else ", ended at once"
        ended, exit_code = Ended(how="stopped", why=f"{signal.Signals(asked[0]).name}{how}; {saved}"), 128 + asked[0]
    elif code >= 128:  # the process itself was asked to stop
        ended = Ended(how="stopped", why=f"{signal.Signals(code - 128).name} to rank {rank}; {saved}")
        exit_code = code
    else:
        why = "; ".join(crash.lines) if crash else _death(code)
        ended = Ended(how="failed", why=f"rank {rank}: {why}; its log is {logs / f'rank-{rank}.log'}")
        exit_code = 2 if crash and crash.mendable else 1
    follower.tell([ended])
    return Outcome(exit_code, follower.state, crash)


def _death(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        more = ", often because memory ran out" if name == "SIGKILL" else ""
        return f"killed by {name}{more}"
    return f"ended with exit code {code}"
