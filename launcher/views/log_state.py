"""The log of another program as a run: its events with our metric names, and the state after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.core.events import Alert, Event, LogProgress, Started, Step
from launcher.core.metric_aliases import by_our_names
from launcher.core.state import RunState, after, fold
from launcher.monitor.console import date
from launcher.views.findings import judge_of, with_fix


class LogState:
    """The state after a log's events, with our names of its metrics.

    A log has no times: the elapsed time is that of its progress bar, or the sum of the seconds of its steps.
    """

    def __init__(self, title: str, kind: str = "") -> None:
        self._arguments, self._elapsed = (title, kind), 0.0
        self._progress: LogProgress | None = None
        self._error = ""
        self._judge = judge_of(None, kind)
        self.state = after(RunState(), Started(at=0.0, run=title, algorithm=kind, processes=0))

    def anew(self) -> LogState:
        """A new state of the same log, before any event."""
        return LogState(*self._arguments)

    def see(self, event: Event) -> list[Event]:
        """The event as one of a run, and the alerts of health rules on it."""
        alerts = self._judge.see(event)
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
        return self._apply([event, *alerts])

    def ended(self, written: float) -> RunState:
        """The state at the end of a log that was last written at `written`; whether the program runs is unknown."""
        if self._error:
            return replace(self.state, status="failed", why=self._error)
        if self.state.step >= self.state.steps > 0:
            return replace(self.state, status="finished")
        return replace(self.state, phase="training", why=f"the log was last written {date(written)}")

    def finish(self) -> Iterator[Event]:
        """The alerts at the end of the log; the judge is called at the first `next`, when all events were seen."""
        yield from self._apply(self._judge.finish())

    def _apply(self, events: Sequence[Event]) -> list[Event]:
        timed = [replace(each, at=self._elapsed) for each in events]
        self.state = fold(timed, self.state)
        return timed

    def at(self, now: float, idle_s: float, *, counted: bool, error: Alert | None = None) -> RunState:
        """The state `idle_s` seconds after the last event; `counted`: its steps are only counted, so the progress bar's
        step is used; `error`: an error that no step has followed."""
        step = self._progress.step if counted and self._progress else self.state.step
        started_at = now - idle_s - self._elapsed
        alert = error.text if error else self.state.alert
        return replace(self.state, step=step, phase="training", started_at=started_at, last_at=now, alert=alert)


def with_our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics by our names; of two spellings of a metric, the one first in `spellings` counts."""
    return {our_name: metrics[name] for our_name, name in by_our_names(metrics).items()}
