"""The live view of a log that another program writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.cli.live_view import watching
from launcher.cli.output import out
from launcher.core.events import Alert, Event, LogProgress, Started, Step
from launcher.core.files import NewLines
from launcher.core.metric_aliases import by_our_names
from launcher.core.redaction import printable
from launcher.core.state import RunState, after
from launcher.logs.sources import GrowingLog, open_log
from launcher.views.findings import judge_of

LOOK_S = 0.3
LINES = 10  # of a log that are printed before new ones, without a terminal


class LogState:
    """The state that a log's events make, with our names of its metrics.

    A log has no times: what has passed is what its progress bar says, or the sum of the seconds of its steps.
    """

    def __init__(self, title: str, kind: str = "") -> None:
        self._begun_with, self._elapsed = (title, kind), 0.0
        self._progress: LogProgress | None = None
        self._judge = judge_of(None, kind)
        self._state = after(RunState(), Started(at=0.0, run=title, algorithm=kind, processes=0))

    def anew(self) -> LogState:
        """As it was before any event."""
        return LogState(*self._begun_with)

    def see(self, event: Event) -> None:
        if isinstance(event, Step):
            metrics = with_our_names(event.metrics)
            seconds = metrics.get("timing_s/step", 0.0)
            self._elapsed += seconds if 0 < seconds < 1e7 else 0.0
            event = replace(event, metrics=metrics)
        elif isinstance(event, LogProgress):
            self._elapsed = max(self._elapsed, event.elapsed_s or 0.0)
            self._progress = event
        for each in (event, *self._judge.see(event)):
            self._state = after(self._state, replace(each, at=self._elapsed))

    def at(self, now: float, idle_s: float, *, counted: bool, error: Alert | None = None) -> RunState:
        """The state `idle_s` after the last event; `counted`: its steps are only counted, so the bar knows better;
        `error`: what no step has followed so far."""
        step = self._progress.step if counted and self._progress else self._state.step
        began = now - idle_s - self._elapsed
        alert = error.text if error else self._state.alert
        return replace(self._state, step=step, phase="training", started_at=began, last_at=now, alert=alert)


def with_our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by our names; of two spellings of one metric the one counts that `spellings` has first."""
    return {ours: metrics[name] for ours, name in by_our_names(metrics).items()}


def watch_log(path: Path) -> None:
    """Show a log as it grows, until Ctrl-C. Raises `Problems` where it cannot be read."""
    source = open_log(path)
    if not out.is_terminal:
        for line in tail(path, lambda: True, LINES):
            print(printable(line.rstrip("\r")), flush=True)
        return
    log, state, changed = GrowingLog(path, time.time), LogState(path.name, source.kind), time.time()
    with watching() as view:
        while True:
            state, count = see_new(state, log)
            changed = time.time() if count else changed
            idle_s, reads = time.time() - changed, log.parser
            view.write(state.at(time.time(), idle_s, counted=reads.reading.numbers.counted, error=reads.error), [], [])
            time.sleep(LOOK_S if not count else 0.0)


def see_new(state: LogState, log: GrowingLog) -> tuple[LogState, int]:
    """The state with a log's new events, and how many those are. A log that is read anew makes a state of its own."""
    count, readings = 0, log.readings
    for event in log.new():
        if log.readings != readings:
            state, readings = state.anew(), log.readings
        state.see(event)
        count += 1
    return (state if log.readings == readings else state.anew()), count


def tail(path: Path, alive: Callable[[], bool] | None, last: int | None) -> Iterator[str]:
    """The `last` whole lines, or all; with `alive`, new ones until it says no."""
    lines = NewLines(path)
    while True:
        going = alive() if alive else False
        yield from lines.read() if last is None else deque(lines.read(), last)
        if path.is_file():
            last = None
        if not going:
            return
        time.sleep(LOOK_S)
