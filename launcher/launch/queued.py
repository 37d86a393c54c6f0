"""A run that a queue starts later: submit it, and watch it from here."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher.core.events import LoggedEvent
from launcher.core.problems import Problems
from launcher.core.state import RunState, Sink, write_all
from launcher.launch.follow import Outcome
from launcher.monitor.console import console_lines
from launcher.runs.folder import Folder
from launcher.runs.store import RunReader
from launcher.spec.cluster import Queued
from launcher.spec.run import RunSpec

LOOK_S = 0.5  # between two looks at the run's events
ASK_S = 5.0  # between two questions to the queue, which all its users ask
CODES = {"finished": 0, "failed": 1, "stopped": 128 + signal.SIGTERM}


def submit_and_follow(run: RunSpec, folder: Folder, sinks: Sequence[Sink]) -> Outcome:
    """Submit, and watch until the job has left the queue. Ctrl-C ends the watching only."""
    queued = run.cluster.submit(folder.name, folder.path, run.taken)
    watch = QueueWatcher(folder, queued, sinks)
    try:
        return watch.wait_until_left_queue()
    except KeyboardInterrupt:
        watch.say(f"{queued.name} continues; rlrun stop {folder.path} would end it")
        return Outcome(128 + signal.SIGINT, replace(watch.state, why=""))


class QueueWatcher:
    """Reads the events that the run's writer logs, on whatever machine."""

    def __init__(self, folder: Folder, queued: Queued, sinks: Sequence[Sink]) -> None:
        self.folder, self.queued, self.sinks = folder, queued, sinks
        self._reader = RunReader(folder.events)

    def wait_until_left_queue(self) -> Outcome:
        status, asked_at = "", -ASK_S
        while True:
            if time.monotonic() - asked_at >= ASK_S:
                now, asked_at = self._ask(status), time.monotonic()
                if now != status and now:
                    self.say(f"{self.queued.name}: {now}")
                if not now:
                    self.look()  # after the query: a run that has left the queue has written everything
                    return self._outcome()
                status = now
            self.look()
            if self.state.status == "finished":
                return self._outcome()
            time.sleep(LOOK_S)

    def _ask(self, before: str) -> str:
        """The status; that of `before` where the queue does not answer."""
        try:
            return self.queued.queue_status()
        except Problems as problems:
            self.say("; ".join(problems.lines))
            return before or "will be asked again"

    def look(self) -> None:
        """Show what is new."""
        events, lines = list[LoggedEvent](), list[str]()
        for logged in self._reader.new():
            events.append(logged)
            lines += console_lines(logged.event, self.state)
        write_all(self.sinks, self.state, events, lines)

    @property
    def state(self) -> RunState:
        return self._reader.state

    def say(self, line: str) -> None:
        write_all(self.sinks, self.state, [], [line])

    def _outcome(self) -> Outcome:
        if self.state.status in CODES:
            return Outcome(CODES[self.state.status], self.state)
        if self.queued.stopped:  # with --now, or before it began
            return Outcome(CODES["stopped"], replace(self.state, status="stopped", phase=""))
        why = f"{self.queued.name} has left the queue before the run ended; see {self.queued.log}"
        return Outcome(1, replace(self.state, status="failed", phase="", why=why))
