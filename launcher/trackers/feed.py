"""The event log as a tracker reads it: from a remembered position, one finished step after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.core.events import (
    GOES_BACK,
    Alert,
    Distribution,
    Ended,
    Event,
    LoggedEvent,
    LogReader,
    Restarted,
    Resumed,
    Sample,
    Stalled,
    Step,
    is_damage,
    is_undone,
    scan,
    undone,
)

MOST_WAITING = 10_000
"""Most events that wait for the end of their step; when there are more, they are passed on without it."""


@dataclass(frozen=True)
class FeedPosition:
    """How far a log has been read. It depends on the log up to `seq` alone, so two readers number the steps alike."""

    seq: int = -1
    """`seq` of the last event."""
    row: int = -1
    """Row of the last step; see `TrackedStep.row`."""
    shift: int = 0
    """Row of a step minus its number."""


@dataclass(frozen=True)
class TrackedStep:
    """A finished step, with everything that was reported since the step before; or alerts that must not wait for the
    end of a step, then without metrics."""

    row: int
    """Grows with every step. It is the step's own number until the run goes back to a checkpoint, which repeats
    numbers."""
    step: int
    at: float
    """Unix seconds (UTC)."""
    after: FeedPosition
    """The position to continue from once this is sent."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    alerts: Sequence[Alert] = ()
    samples: Sequence[Sample] = ()
    distributions: Sequence[Distribution] = ()
    went_back: int | None = None
    """The step to which the run went back since the previous one: what it reported after that is undone."""


class Feed:
    """Reads `log` after `position`, as it grows."""

    def __init__(self, log: Path, position: FeedPosition | None = None) -> None:
        self.position = position = position or FeedPosition()
        self.ended: Ended | None = None
        """How the run ended; None while it runs, and where it was killed."""
        self._log = LogReader(log, after=position.seq)
        self._waiting = list[Event]()
        self._undone: Sequence[range] = undone(LogReader(log).new()) if scan(log)[1] else ()

    def new(self) -> Iterator[TrackedStep]:
        """The steps finished since the last call. Those that the log, when this feed begins, already undoes later are
        left out; their rows stay free."""
        for logged in self._log.new():
            if is_damage(logged.event):
                continue
            if isinstance(logged.event, Ended):
                self.ended = logged.event
            elif isinstance(logged.event, GOES_BACK):
                self.ended = None
            if step := self._process(logged):
                yield step

    def _process(self, logged: LoggedEvent) -> TrackedStep | None:
        event, position = logged.event, replace(self.position, seq=logged.seq)
        if isinstance(event, Step):
            shift = max(position.shift, position.row + 1 - event.step)
            position = replace(position, row=event.step + shift, shift=shift)
        self.position = position
        if is_undone(logged, self._undone):
            return None
        if isinstance(event, Step | Sample | Distribution | Alert | Stalled | Restarted | Resumed):
            self._waiting.append(event)
        urgent = isinstance(event, Stalled) or (isinstance(event, Alert) and event.level == "critical")
        none_waits = not any(isinstance(waiting, Sample | Distribution) for waiting in self._waiting)
        is_whole = isinstance(event, Step | Ended) or (urgent and none_waits) or len(self._waiting) >= MOST_WAITING
        return self._finish(event) if is_whole else None

    def _finish(self, last: Event) -> TrackedStep | None:
        """The waiting events as one step, if any. Samples and distributions without metrics get a row of their own."""
        events, self._waiting = self._waiting, []
        samples, distributions = _select(events, Sample), _select(events, Distribution)
        alerts = list(map(_alert, _select(events, Alert | Stalled)))
        back_to = [event.step for event in _select(events, GOES_BACK)]
        if not isinstance(last, Step):
            if not (samples or distributions or alerts or back_to):
                return None
            self.position = replace(self.position, row=self.position.row + bool(samples or distributions))
        steps = [event.step for event in _select(events, Step | Sample | Distribution | Alert | Stalled)]
        return TrackedStep(
            row=self.position.row, step=[*back_to, *steps][-1], at=last.at, after=self.position,
            metrics=last.metrics if isinstance(last, Step) else {}, alerts=alerts, samples=samples,
            distributions=distributions, went_back=min(back_to, default=None),
        )  # fmt: skip


def _select(events: Sequence[Event], kind: Any) -> list[Any]:
    """The events of a class, or of a union of classes."""
    return [event for event in events if isinstance(event, kind)]


def _alert(event: Alert | Stalled) -> Alert:
    if isinstance(event, Alert):
        return event
    return Alert(at=event.at, step=event.step, text=f"stalled: {event.why}", rule="stalled")
