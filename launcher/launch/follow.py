"""The only writer of a run's events: it hears the processes, writes down what happens, and shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from launcher.core.events import GOES_BACK, Crashed, Event, LoggedEvent, WentOn, events_of, scan
from launcher.core.files import AppendOnlyFile
from launcher.core.state import RunState, Show, after, fold
from launcher.monitor.console import console_lines
from launcher.monitor.stall import Watch, stalled
from launcher.runs.folder import Folder
from launcher.runs.stop_requests import Asked
from launcher.spec.cluster import Job
from launcher.spec.engine import Engine

POLL_S = 0.05
CRASHED_S = 30.0  # for a process that told why it cannot go on to end; some never do
STACKS_S = 1.0  # for the processes to say where they stand


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    state: RunState
    crash: Crashed | None = None


class Follower:
    """From events to events.jsonl, console.log and the screen. Events get the number of the `attempt` that is set."""

    def __init__(self, folder: Folder, show: Show, attempt: int) -> None:
        self.folder, self.show, self.attempt = folder, show, attempt
        self.state = fold(events_of(folder.events))
        self._events, self._console = AppendOnlyFile.open(folder.events), AppendOnlyFile.open(folder.console)
        self.next_seq = scan(folder.events)[0]
        self.crash: Crashed | None = None

    def begin(self, attempt: int) -> None:
        """From now on events are of another attempt, which has not crashed."""
        self.attempt, self.crash = attempt, None

    def tell(self, events: list[Event]) -> None:
        """Write events down, then show them."""
        shown: list[str] = []
        for event in events:
            self._events.append(LoggedEvent(self.next_seq, self.attempt, event).line)
            self.next_seq += 1
            self.state = self._after(event)
            shown += console_lines(event, self.state)
            if isinstance(event, Crashed):
                self.crash = event
        for line in shown:
            self._console.append(line)
        self.show(self.state, events, shown)

    def _after(self, event: Event) -> RunState:
        """The state once `event` is written down: made anew where it undoes others."""
        if isinstance(event, GOES_BACK) and not self._events.refused:
            return fold(events_of(self.folder.events))
        return after(self.state, event)

    def close(self) -> None:
        self._events.close()
        self._console.close()


def follow(job: Job, engine: Engine, follower: Follower, watch: Watch, asked: Asked) -> int:
    """Until all processes have ended; how they did, as `Job.exit_code` says. Who stands still is told meanwhile."""
    crashed_at: float | None = None
    while (code := job.exit_code()) is None:
        heard, used = hear(job, engine), job.usage()
        now = time.monotonic()
        if heard:
            stood = watch.hear(heard, now)
            went_on: list[Event] = [] if stood is None else [WentOn(step=follower.state.step, after_s=stood)]
            follower.tell([*went_on, *heard, *used])
        elif why := watch.stalls(follower.state, now):
            follower.tell([stalled(why, job.stacks(STACKS_S), follower.state), *used])
        else:
            follower.tell([*used])  # no sign that training goes on
        if follower.crash:
            crashed_at = crashed_at or now
            if now - crashed_at > CRASHED_S:
                job.kill()
        asked.look()
        time.sleep(POLL_S)
    follower.tell(hear(job, engine))
    return code


def hear(job: Job, engine: Engine) -> list[Event]:
    """What the cluster and rank 0 told since the last call."""
    told = job.news()
    return [*told, *(event for line in job.lines() for event in engine.read(line))]
