"""A run as it stands: what all readers of its events see, and how each event changes it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from statistics import median
from typing import Literal, Protocol, get_args

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
    """The state after `events`, which hold no undone ones (`events.read_log`)."""
    return reduce(after, events, state or RunState())


def after(state: RunState, event: Event) -> RunState:
    """The state once `event` has happened."""
    if isinstance(event, Resumed) and state.last_at is not None:
        state = replace(state, paused_s=state.paused_s + max(event.at - state.last_at, 0.0))
    state = replace(state, last_at=max(event.at, state.last_at or 0.0))
    match event:
        case Loaded(steps=steps):
            return replace(state, steps=steps)
        case LogProgress(step=step, steps=steps):
            return replace(state, step=max(step, state.step), steps=steps, status="running")
        case Step():
            return _after_step(state, event)
        case WeightsMoved(distance=distance):
            return replace(state, moved=distance)
        case Sample() | TrainingGroup() | HeldOutEpisodes():
            return _after_answers(state, event)
        case Saved(path=path):
            return replace(state, checkpoint=path)
        case Usage(rank=rank):
            return replace(state, usage={**state.usage, rank: event})
        case Alert(text=text, level=level):
            counts = {**state.alerts_by_level, level: state.alerts_by_level.get(level, 0) + 1}
            state = replace(state, alerts=state.alerts + 1, alerts_by_level=counts)
            milder = LEVELS.index(level) < LEVELS.index(state.alert_level)
            return state if milder else replace(state, alert=text, alert_level=level)
    return _after_status(state, event)


def _after_episodes(state: RunState, event: HeldOutEpisodes) -> RunState:
    rewards = [reward for reward in event.rewards if math.isfinite(reward)]
    first = sum(rewards) / len(rewards) if rewards and state.first_reward is None else state.first_reward
    return replace(state, first_reward=first)


def _after_status(state: RunState, event: Event) -> RunState:
    """The state after an event about the run as a whole: its start, waits, phases, restarts, stalls and end."""
    match event:
        case Started():
            return replace(
                state, run=event.run, algorithm=event.algorithm, processes=event.processes,
                status="running", started_at=event.at,
            )  # fmt: skip
        case Waiting(text=text, for_s=for_s):
            return replace(state, phase=state.phase or "waiting", waits_for=text, waits_since=event.at - for_s)
        case Phase(name=name):
            return replace(state, phase=name, status="running", waits_for="")
        case Crashed(lines=lines):
            return replace(state, why="; ".join(lines))
        case Restarted():
            return replace(_without_waits(state), status="running", restarts=state.restarts + 1, alert_level="info")
        case Resumed(steps=steps):
            steps = steps or state.steps
            return replace(_without_waits(state), status="running", steps=steps, alert_level="info", verdict=None)
        case Stalled(why=why, for_s=for_s):
            return replace(state, stalled=why, waits_since=event.at - for_s)
        case WentOn():
            return replace(state, stalled="")
        case Ended(how=how, why=why, following=following, verdict=verdict):
            why = why or state.why
            return replace(_without_waits(state), status=how, phase="", why=why, following=following, verdict=verdict)
    return state


def _after_answers(state: RunState, event: Sample | TrainingGroup | HeldOutEpisodes) -> RunState:
    if isinstance(event, HeldOutEpisodes):
        return _after_episodes(state, event)
    held_out = isinstance(event, Sample)
    new = list(map(_shortened, [event] if isinstance(event, Sample) else training_answers(event)))
    before = [answer for answer in state.answers if answer.step == event.step and type(answer) is type(new[0])]
    ranked = sorted([*before, *new] if held_out else new, key=lambda each: (each.value != each.value, -each.value))
    if not held_out and before and before[0].value - before[-1].value >= ranked[0].value - ranked[-1].value:
        return state
    return replace(state, answers=(*ranked[:1], *ranked[1:][-1:]))


def _shortened(answer: Sample) -> Sample:
    prompt, response, truth = (
        " ".join(cut_middle(text, SHORT, "…").split()) for text in (answer.prompt, answer.response, answer.ground_truth)
    )
    return replace(answer, prompt=prompt, response=response, ground_truth=truth)


def _without_waits(state: RunState) -> RunState:
    """`state` without stalls, waits and usage, as those were of an attempt that has ended."""
    return replace(state, stalled="", waits_for="", usage={})


def _after_step(state: RunState, event: Step) -> RunState:
    event = replace(event, metrics=ties_as_half(event.metrics))
    measured = validation(event.metrics)
    if measured:
        state = replace(state, validation=measured, validated_step=event.step)
    marks = (*state.marks, (event.step, event.at))[-HISTORY:]
    state = replace(state, step=event.step, metrics={**state.metrics, **event.metrics}, marks=marks)
    if latest := held_out(event.step, event.metrics):
        best = state.best if state.best and not better_than(latest, state.best) else latest
        state = replace(state, first=state.first or latest, best=best, last=latest)
    if new := {name: event.metrics[name] for name in LEARNT_FROM if math.isfinite(event.metrics.get(name, math.nan))}:
        sums = {name: state.learnt_from.get(name, (0.0, 0)) for name in new}
        total = {name: (before + new[name], steps + 1) for name, (before, steps) in sums.items()}
        state = replace(state, learnt_from={**state.learnt_from, **total})
    if score := main_score(event.metrics):
        name, value = score
        state = replace(state, score_name=name, score=value, curve=state.curve.then(value))
    return state
