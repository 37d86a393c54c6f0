"""A run as it stands: what all readers of its events see, and how each event changes it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from statistics import fmean, median
from typing import Any, Literal, Protocol, get_args

from launcher.core.events import (
    Alert,
    Crashed,
    Ended,
    Event,
    HeldOutEpisodes,
    Level,
    Loaded,
    LoggedEvent,
    LogProgress,
    Phase,
    Restarted,
    Resumed,
    Sample,
    Saved,
    Stalled,
    Started,
    Step,
    TrainingGroup,
    Usage,
    Waiting,
    WeightsMoved,
    WentOn,
)
from launcher.core.metrics import LEARNT_FROM, HeldOut, better_than, held_out, main_score, ties_as_half, validation
from launcher.core.redaction import cut_middle
from launcher.core.verdict import RunVerdict

HISTORY = 60  # steps the speed is taken from
POINTS = 48  # most points of a curve
Status = Literal["waiting", "running", "finished", "failed", "stopped"]
LEVELS = get_args(Level)  # the least serious first
SHORT = 100  # characters of an answer that a screen shows


@dataclass(frozen=True)
class Curve:
    """A whole run's values in at most POINTS means, each over `stride` of them; what is left over waits."""

    points: tuple[float, ...] = ()
    stride: int = 1
    waiting: tuple[float, ...] = ()

    def then(self, value: float) -> Curve:
        waiting = (*self.waiting, value)
        if len(waiting) < self.stride:
            return replace(self, waiting=waiting)
        points = (*self.points, sum(waiting) / len(waiting))
        if len(points) < POINTS:
            return Curve(points, self.stride)
        halved = tuple((a + b) / 2 for a, b in zip(points[::2], points[1::2], strict=True))
        return Curve(halved, self.stride * 2)


@dataclass(frozen=True, kw_only=True)
class TrainingAnswer(Sample):
    """One answer of a training group."""

    group: int
    parts: Mapping[str, float]
    advantage: float


def training_answers(of: TrainingGroup) -> list[TrainingAnswer]:
    return [
        TrainingAnswer(
            at=of.at, step=of.step, data_source=of.data_source, prompt=of.prompt, response=response,
            ground_truth=of.ground_truth, score=of.scores[place], group=of.group, advantage=of.advantages[place],
            parts={name: values[place] for name, values in of.parts.items()}, episodes=of.episodes[place : place + 1],
        )
        for place, response in enumerate(of.responses)
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunState:
    """All that a reader may know."""

    run: str = ""
    algorithm: str = ""
    status: Status = "waiting"
    phase: str = ""
    waits_for: str = ""
    """Before processes start, the nodes and what they lack; later a row being scored, or a program being started."""
    waits_since: float | None = None
    """When that wait, or a stall, began."""
    step: int = 0
    steps: int = 0
    processes: int = 0
    started_at: float | None = None
    last_at: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    validated_step: int | None = None
    first: HeldOut | None = None
    """The first validation, that before training where there was one; `last` is the latest."""
    best: HeldOut | None = None
    last: HeldOut | None = None
    first_reward: float | None = None
    """Mean reward of the episodes of the first validation with an environment."""
    learnt_from: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Of each metric in `LEARNT_FROM` the sum over the steps, and how many steps have it."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """The distances of the latest `WeightsMoved`."""
    score_name: str = ""
    score: float | None = None
    curve: Curve = field(default_factory=Curve)
    """The score over the whole run."""
    marks: tuple[tuple[int, float], ...] = ()
    """(step, time) of the latest steps; speed and ETA come from them."""
    answers: tuple[Sample, ...] = ()
    """The best and the worst of the newest ones, shortened: to held-out prompts, or of the training group whose scores
    differ most."""
    paused_s: float = 0.0
    """Until a person resumed it."""
    checkpoint: str = ""
    alert: str = ""
    """The latest of the most serious since the run was started again."""
    alert_level: Level = "info"
    alerts: int = 0
    alerts_by_level: Mapping[Level, int] = field(default_factory=dict)
    restarts: int = 0
    stalled: str = ""
    """Why the run is stalled; empty when it goes on."""
    why: str = ""
    following: tuple[str, ...] = ()
    verdict: RunVerdict | None = None
    """As in `Ended`, as are `why` and `following`."""
    usage: Mapping[int, Usage] = field(default_factory=dict)
    """The latest usage of each process, by rank; empty once they have ended."""

    @property
    def doubtful(self) -> bool:
        """Whether the run finished, but something is wrong with its result, as `why` says."""
        return self.status == "finished" and bool(self.why)

    @cached_property
    def seconds_per_step(self) -> float | None:
        """Seconds that a step took lately; the median, so that a pause between two attempts does not count. None of a
        log without times."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        paces = [max(end - begin, 0.0) / max(last - first, 1) for (first, begin), (last, end) in pairs]
        return (median(paces) or None) if paces else None

    @property
    def eta_s(self) -> float | None:
        """None while the number of steps or how long one takes is unknown."""
        pace = self.seconds_per_step
        return None if pace is None or self.steps < max(self.step, 1) else pace * (self.steps - self.step)

    @property
    def elapsed_s(self) -> float:
        if self.started_at is None or self.last_at is None:
            return 0.0
        return max(self.last_at - self.started_at - self.paused_s, 0.0)


class Sink(Protocol):
    """Receives what happens in a run: a log, a screen, a tracker."""

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        """The state, the events that led to it and their console lines; also called without events, for clocks."""

    def close(self) -> None:
        """Called once, after the last `write`."""


def write_all(sinks: Iterable[Sink], state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
    for sink in sinks:
        sink.write(state, events, lines)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """The state after `events`, which hold no undone ones (`events.events_of`)."""
    return reduce(after, events, state or RunState())


def after(state: RunState, event: Event) -> RunState:
    """The state once `event` has happened."""
    changes = _CHANGES[type(event)](state, event) if type(event) in _CHANGES else {}
    return replace(state, **{"last_at": max(event.at, state.last_at or 0.0), **changes})


Changes = Mapping[str, Any]
"""New values of fields of the state."""


def _after_step(state: RunState, event: Step) -> Changes:
    metrics = ties_as_half(event.metrics)
    marks = (*state.marks, (event.step, event.at))[-HISTORY:]
    changes: dict[str, Any] = {"step": event.step, "metrics": {**state.metrics, **metrics}, "marks": marks}
    if measured := validation(metrics):
        changes |= {"validation": measured, "validated_step": event.step}
    if latest := held_out(event.step, metrics):
        best = state.best if state.best and not better_than(latest, state.best) else latest
        changes |= {"first": state.first or latest, "best": best, "last": latest}
    learnt_from = dict(state.learnt_from)
    for name in LEARNT_FROM:
        if math.isfinite(value := metrics.get(name, math.nan)):
            total, steps = learnt_from.get(name, (0.0, 0))
            learnt_from[name] = total + value, steps + 1
    if score := main_score(metrics):
        changes |= {"score_name": score[0], "score": score[1], "curve": state.curve.then(score[1])}
    return {**changes, "learnt_from": learnt_from}


def _after_answers(state: RunState, event: Sample | TrainingGroup) -> Changes:
    held_out = isinstance(event, Sample)
    new = list(map(_shortened, [event] if isinstance(event, Sample) else training_answers(event)))
    before = [answer for answer in state.answers if answer.step == event.step and type(answer) is type(new[0])]
    ranked = sorted([*before, *new] if held_out else new, key=lambda each: (each.value != each.value, -each.value))
    if not held_out and before and before[0].value - before[-1].value >= ranked[0].value - ranked[-1].value:
        return {}
    return {"answers": (*ranked[:1], *ranked[1:][-1:])}


def _shortened(answer: Sample) -> Sample:
    prompt, response, truth = (
        " ".join(cut_middle(text, SHORT, "…").split()) for text in (answer.prompt, answer.response, answer.ground_truth)
    )
    return replace(answer, prompt=prompt, response=response, ground_truth=truth)


def _after_episodes(state: RunState, event: HeldOutEpisodes) -> Changes:
    rewards = [reward for reward in event.rewards if math.isfinite(reward)]
    return {"first_reward": fmean(rewards)} if rewards and state.first_reward is None else {}


def _after_alert(state: RunState, event: Alert) -> Changes:
    counts = {**state.alerts_by_level, event.level: state.alerts_by_level.get(event.level, 0) + 1}
    milder = LEVELS.index(event.level) < LEVELS.index(state.alert_level)
    shown = {} if milder else {"alert": event.text, "alert_level": event.level}
    return {"alerts": state.alerts + 1, "alerts_by_level": counts, **shown}


_NEW_ATTEMPT = {"stalled": "", "waits_for": "", "usage": {}}  # those were of an attempt that has ended
_CHANGES: Mapping[type[Event], Callable[[RunState, Any], Changes]] = {
    Step: _after_step,
    Sample: _after_answers,
    TrainingGroup: _after_answers,
    HeldOutEpisodes: _after_episodes,
    Alert: _after_alert,
    Started: lambda _, event: {
        "run": event.run, "algorithm": event.algorithm, "processes": event.processes, "status": "running",
        "started_at": event.at,
    },
    Loaded: lambda _, event: {"steps": event.steps},
    LogProgress: lambda state, event: {
        "step": max(event.step, state.step), "steps": event.steps, "status": "running",
    },
    Phase: lambda _, event: {"phase": event.name, "status": "running", "waits_for": ""},
    Waiting: lambda state, event: {
        "phase": state.phase or "waiting", "waits_for": event.text, "waits_since": event.at - event.for_s,
    },
    WeightsMoved: lambda _, event: {"moved": event.distance},
    Saved: lambda _, event: {"checkpoint": event.path},
    Usage: lambda state, event: {"usage": {**state.usage, event.rank: event}},
    Crashed: lambda _, event: {"why": "; ".join(event.lines)},
    Stalled: lambda _, event: {"stalled": event.why, "waits_since": event.at - event.for_s},
    WentOn: lambda _, event: {"stalled": ""},
    Restarted: lambda state, _: {
        **_NEW_ATTEMPT, "status": "running", "restarts": state.restarts + 1, "alert_level": "info",
    },
    Resumed: lambda state, event: {
        **_NEW_ATTEMPT, "status": "running", "steps": event.steps or state.steps, "alert_level": "info",
        "verdict": None, "paused_s": state.paused_s + max(event.at - (state.last_at or event.at), 0.0),
    },
    Ended: lambda state, event: {
        **_NEW_ATTEMPT, "status": event.how, "phase": "", "why": event.why or state.why,
        "following": event.following, "verdict": event.verdict,
    },
}  # fmt: skip
"""What each event changes; another one changes only when the run was last heard of."""
