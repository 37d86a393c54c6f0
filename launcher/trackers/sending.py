"""Sends a run to one tracker, repeating each call until it succeeds, and remembers what has arrived; of a run that
trains, as a process: `python -m launcher.trackers.sending NAME FOLDER`.

Standard input of the process is a pipe that the launcher holds. Its end says that the run has ended, or that the
launcher was killed: the process sends what is left and exits, at most `FINISH_S` seconds later, even if a library
hangs. Exit codes: 0 everything has arrived, 1 something has not, 2 it cannot work at all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from launcher.core.problems import OnMessage, Problems
from launcher.core.user_code import CallFailure, try_call
from launcher.trackers.feed import Feed, FeedPosition, TrackedStep
from launcher.trackers.tracker import (
    Remembered,
    Tracker,
    locked,
    make_tracker,
    read_state,
    tracked_run,
    write_state,
)

POLL_S = 0.5
BATCH = 200  # steps that are sent at a time
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before a call that failed is repeated: the first, then twice that, up to the longest."""
FINISH_S = 15.0
LAST_TRIES = 2  # rounds that may fail once the run has ended


@dataclass
class Sent:
    """Counts of what a `Sender` has sent."""

    where: str = ""
    steps: int = 0
    alerts: int = 0
    samples: int = 0
    failure: str = ""
    """Why not everything has arrived."""


@dataclass
class Sender:
    """Sends the run in `folder` to the tracker `name`."""

    name: str
    folder: Path
    alive: Callable[[], bool]
    """Whether the run may still log events."""
    say: OnMessage
    pause: Callable[[float], object] = time.sleep
    sent: Sent = field(default_factory=Sent)

    def __post_init__(self) -> None:
        self._tracker: Tracker | None = None
        self._feed = Feed(self.folder / "events.jsonl")
        self._remembered = Remembered("")
        self._has = self._alerts_after = -1  # rows, and the seq of alerts alone, up to here have arrived
        self._furthest = -1  # seq up to which this sender has sent

    def run(self) -> Sent:
        """Send until nothing more can come; a call that fails is repeated until then, and a few times after it while
        nothing arrives. Raises `Problems` where another process sends this run, or its folder cannot be read."""
        with locked(self.folder, self.name):
            pause, tries = 0.0, 0
            while tries < LAST_TRIES:
                alive, before = self.alive(), self._furthest  # before reading: a run that has ended has logged all
                failure = self._send_all()
                if failure != self.sent.failure:
                    self.say(failure or f"{self.name}: works again")
                self.sent.failure = failure
                if not (failure or alive):
                    break
                tries = 0 if alive or self._furthest > before else tries + 1
                pause = min(pause * 2 or FIRST_PAUSE_S, LONGEST_PAUSE_S) if failure else 0.0
                if tries < LAST_TRIES:
                    self._wait(pause or POLL_S)
            self._close()
            return self.sent

    def _wait(self, seconds: float) -> None:
        """Pause, for less where the run has ended."""
        waited = 0.0
        while waited < seconds and (self.alive() or waited < min(seconds, FIRST_PAUSE_S)):
            self.pause(min(POLL_S, seconds - waited))
            waited += POLL_S

    def _send_all(self) -> str:
        """Send all that is logged. Returns why something has not arrived, or ""."""
        failure = "" if self._tracker else self._open()
        while not failure and (steps := list(islice(self._steps(), BATCH))):
            failure = self._log(steps)
        return failure

    def _steps(self) -> Iterator[TrackedStep]:
        """The finished steps that have not arrived yet."""
        for step in self._feed.new():
            alerts_only = not (step.metrics or step.samples or step.distributions)
            if step.row > self._has or (alerts_only and step.after.seq > self._alerts_after):
                yield step

    def _open(self) -> str:
        """Open the tracker, and find out what has arrived. Returns why that failed, or ""."""
        self._remembered = read_state(self.folder, self.name)
        run = tracked_run(self.folder, self._remembered.id)
        write_state(self.folder, self.name, self._remembered)  # the id, which must not change with the folder's name
        tracker = try_call(partial(make_tracker, self.name))
        if isinstance(tracker, CallFailure):
            return f"{self.name}: {tracker.reason}"
        row = try_call(partial(tracker.open, run, self._remembered.state))
        if isinstance(row, CallFailure):
            try_call(partial(tracker.close, None))
            return f"{self.name}: {row.reason}"
        position = self._remembered.position
        behind = row is not None and row < position.row
        self._has, self._alerts_after = -1 if row is None else row, -1 if row == -1 else position.seq
        if tracker.state != self._remembered.state:  # before anything is sent: a kill may come at any time
            self._remembered = Remembered(run.id, FeedPosition() if behind else position, dict(tracker.state))
            write_state(self.folder, self.name, self._remembered)
        self._feed = Feed(self.folder / "events.jsonl") if behind else Feed(self.folder / "events.jsonl", position)
        self._tracker, self.sent.where = tracker, tracker.where
        return ""

    def _log(self, steps: list[TrackedStep]) -> str:
        assert self._tracker
        done = try_call(partial(self._tracker.log, steps))
        if isinstance(done, CallFailure):
            try_call(partial(self._tracker.close, None))
            self._tracker = None
            return f"{self.name}: {done.reason}"
        after = steps[-1].after
        self._furthest = max(self._furthest, after.seq)
        if after.seq > self._remembered.position.seq:
            self._remembered = Remembered(self._remembered.id, after, dict(self._tracker.state))
            write_state(self.folder, self.name, self._remembered)
        self.sent.steps += sum(bool(step.metrics) for step in steps)
        self.sent.alerts += sum(len(step.alerts) for step in steps)
        self.sent.samples += sum(len(step.samples) for step in steps)
        return ""

    def _close(self) -> None:
        if self._tracker:
            how = self._feed.ended.how if self._feed.ended else None
            done = try_call(partial(self._tracker.close, how))
            if isinstance(done, CallFailure):
                self.sent.failure = f"{self.name}: {done.reason}"


def main(name: str, folder: str) -> int:
    ended = threading.Event()
    threading.Thread(target=_end_with, args=(ended,), daemon=True).start()
    say = partial(print, flush=True)
    try:
        sent = Sender(name, Path(folder), lambda: not ended.is_set(), say, pause=ended.wait).run()
    except Problems as problems:
        say("\n".join(problems.lines))
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        say(f"{name}: {error}")
        return 1
    say(f"{name}: {sent.steps} steps sent{f' to {sent.where}' if sent.where else ''}")
    return 1 if sent.failure else 0


def _end_with(ended: threading.Event) -> None:
    """Set `ended` at the end of standard input; exit the process FINISH_S seconds later, if it has not ended."""
    while os.read(0, 4096):
        pass
    ended.set()
    threading.Event().wait(FINISH_S)
    os._exit(1)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of a library may never end
