"""The log of another program as a run: its events by our names, and the state that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.core.events import Alert, Event, LogProgress, Started, Step
from launcher.core.metric_aliases import by_our_names
from launcher.core.state import RunState, after, fold
from launcher.monitor.console import date
from launcher.views.findings import judge_of, with_fix


class LogState:
    """The state that a log's events make, with our names of its metrics.

    A log has no times: what has passed is what its progress bar says, or the sum of the seconds of its steps.
    """

    def __init__(self, title: str, kind: str = "") -> None:
        self._begun_with, self._elapsed = (title, kind), 0.0
        self._progress: LogProgress | None = None
        self._error = ""
        self._judge = judge_of(None, kind)
        self.state = after(RunState(), Started(at=0.0, run=title, algorithm=kind, processes=0))

    def anew(self) -> LogState:
        """As it was before any event."""
        return LogState(*self._begun_with)

    def see(self, event: Event) -> list[Event]:
        """The event as one of a run, and what health rules find by it."""
        found = self._judge.see(event)
        if isinstance(event, Step):
            metrics = with_our_names(event.metrics)
            seconds = metrics.get("timing_s/step", 0.0)
            self._elapsed += seconds if 0 < seconds < 1e7 else 0.0
            event = replace(event, metrics=metrics)
        elif isinstance(event, LogProgress):
            self._elapsed = max(self._elapsed, event.elapsed_s or 0.0)
            self._progress = event
        elif isinstance(event, Alert):
            event = with_fix(event, self._judge)
            self._error = event.text if event.level == "critical" else self._error
        return self._take([event, *found])

    def ended(self, written: float) -> RunState:
        """The state at the end of the log, whose last write was then: whether the program goes on is not known."""
        if self._error:
            return replace(self.state, status="failed", why=self._error)
        if self.state.step >= self.state.steps > 0:
            return replace(self.state, status="finished")
        return replace(self.state, phase="training", why=f"the log was last written {date(written)}")

    def finish(self) -> Iterator[Event]:
        """What is found at the end of the log: looked for when the first is asked for, after all else was seen."""
        yield from self._take(self._judge.finish())

    def _take(self, events: Sequence[Event]) -> list[Event]:
        at = [replace(each, at=self._elapsed) for each in events]
        self.state = fold(at, self.state)
        return at

    def at(self, now: float, idle_s: float, *, counted: bool, error: Alert | None = None) -> RunState:
        """The state `idle_s` after the last event; `counted`: its steps are only counted, so the bar knows better;
        `error`: what no step has followed so far."""
        step = self._progress.step if counted and self._progress else self.state.step
        began = now - idle_s - self._elapsed
        alert = error.text if error else self.state.alert
        return replace(self.state, step=step, phase="training", started_at=began, last_at=now, alert=alert)


def with_our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by our names; of two spellings of one metric the one counts that `spellings` has first."""
    return {ours: metrics[name] for ours, name in by_our_names(metrics).items()}
