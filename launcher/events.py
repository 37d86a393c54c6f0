"""The event log: what a run says about itself, one JSON object a line. Written once, read by everybody.

Console, reports and health rules are readers, and see a run through `RunState`, which `fold` makes out of
its events. Times are Unix seconds (UTC).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from launcher.bounded import json_of
from launcher.metrics import main_score, validation

PhaseName = Literal["loading", "rollout", "update", "validating", "saving"]
How = Literal["finished", "failed", "stopped"]
HISTORY = 60  # steps the speed is taken from
POINTS = 48  # most points of a curve


@dataclass(frozen=True, kw_only=True)
class Event:
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The first line: which run."""

    run: str
    algorithm: str
    processes: int


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """What the run is busy with from now on."""

    name: PhaseName


@dataclass(frozen=True, kw_only=True)
class Loaded(Event):
    """What was read (`rows` + `refused` is all there was), and the steps that it makes."""

    rows: int
    refused: int
    val_rows: int
    val_refused: int
    steps_per_epoch: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """A finished step with its metrics; step 0 is the validation before training."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Sample(Event):
    """One answer to a held-out prompt, as it was given at `step`."""

    step: int
    data_source: str
    prompt: str
    response: str
    ground_truth: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint that is complete on disk; `path` is relative to the run's folder."""

    step: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Alert(Event):
    """Something a person should know; the run goes on."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Crashed(Event):
    """Why a process cannot go on; `lines` are problems to mend or the error, the log has the rest."""

    lines: tuple[str, ...]
    mendable: bool


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    how: How
    why: str = ""


KINDS: Mapping[str, type[Event]] = {
    cls.__name__: cls for cls in (Started, Phase, Loaded, Step, Sample, Saved, Alert, Crashed, Ended)
}


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
class RunState:
    """All that a reader may know."""

    run: str = ""
    algorithm: str = ""
    status: Literal["waiting", "running", "finished", "failed", "stopped"] = "waiting"
    phase: str = ""
    step: int = 0
    steps: int = 0
    processes: int = 0
    started_at: float | None = None
    last_at: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    validated_step: int | None = None
    score_name: str = ""
    score: float | None = None
    curve: Curve = field(default_factory=Curve)
    """The score over the whole run."""
    marks: tuple[tuple[int, float], ...] = ()
    """(step, time) of the latest steps; speed and ETA come from them."""
    checkpoint: str = ""
    alert: str = ""
    alerts: int = 0
    why: str = ""

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds that a step took lately; the median, so that a pause between two attempts does not count."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        paces = [max(end - begin, 0.0) / max(last - first, 1) for (first, begin), (last, end) in pairs]
        return median(paces) if paces else None

    @property
    def eta_s(self) -> float | None:
        pace = self.seconds_per_step
        return None if pace is None else pace * (self.steps - self.step)

    @property
    def elapsed_s(self) -> float:
        if self.started_at is None or self.last_at is None:
            return 0.0
        return max(self.last_at - self.started_at, 0.0)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    return reduce(after, events, state or RunState())


def after(state: RunState, event: Event) -> RunState:
    """The state once `event` has happened."""
    state = replace(state, last_at=max(event.at, state.last_at or 0.0))
    match event:
        case Started():
            return replace(
                state, run=event.run, algorithm=event.algorithm, processes=event.processes,
                status="running", started_at=event.at,
            )  # fmt: skip
        case Loaded(steps=steps):
            return replace(state, steps=steps)
        case Phase(name=name):
            return replace(state, phase=name, status="running")
        case Step():
            return _after_step(state, event)
        case Saved(path=path):
            return replace(state, checkpoint=path)
        case Alert(text=text):
            return replace(state, alert=text, alerts=state.alerts + 1)
        case Crashed(lines=lines):
            return replace(state, why="; ".join(lines))
        case Ended(how=how, why=why):
            return replace(state, status=how, phase="", why=why or state.why)
    return state


def _after_step(state: RunState, event: Step) -> RunState:
    held_out = validation(event.metrics)
    if held_out:
        state = replace(state, validation=held_out, validated_step=event.step)
    marks = (*state.marks, (event.step, event.at))[-HISTORY:]
    state = replace(state, step=event.step, metrics={**state.metrics, **event.metrics}, marks=marks)
    if score := main_score(event.metrics):
        name, value = score
        state = replace(state, score_name=name, score=value, curve=state.curve.then(value))
    return state


def to_line(event: Event) -> str:
    """One line of JSON. Numbers that JSON has no word for are written as the texts NaN, Infinity, -Infinity."""
    node = {"kind": type(event).__name__, **asdict(event)}
    return json.dumps(writable(node), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def writable(node: Any) -> Any:
    """`node` with texts where JSON or UTF-8 has no word for a value."""
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    if isinstance(node, str):
        return node.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be written as UTF-8
    if isinstance(node, dict):
        return {writable(key): writable(value) for key, value in node.items()}
    return [writable(value) for value in node] if isinstance(node, list | tuple) else node


def from_line(line: str | bytes) -> Event | None:
    """The event on a line; None where a newer writer speaks of a kind unknown here."""
    node = json_of(line)
    kind = KINDS.get(node.pop("kind"))
    if kind is None:
        return None
    node["at"] = float(node["at"])
    if "step" in node:
        node["step"] = int(node["step"])
    if kind is Ended and node["how"] not in get_args(How):
        raise ValueError(f"a run does not end {node['how']!r}")
    if kind is Step:
        node["metrics"] = {name: float(value) for name, value in node["metrics"].items()}
    if kind is Sample:
        node["score"] = float(node["score"])
    if kind is Crashed:
        node["lines"] = tuple(map(str, node["lines"]))
    known = kind.__dataclass_fields__
    if wrong := [name for name, of in known.items() if of.type == "str" and not isinstance(node.get(name, ""), str)]:
        raise ValueError(f"{wrong[0]} is no text")
    return kind(**{name: value for name, value in node.items() if name in known})


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Whole lines from byte `offset` on, each with the offset after it; a half-written line waits.

    A line that is damaged is told as an `Alert`: the rest of the log is still worth reading.
    """
    with path.open("rb") as log:
        log.seek(offset)
        for line in log:
            if not line.endswith(b"\n"):
                return
            event = readable(line, Alert(at=0.0, step=0, text=f"{path.name}: the line at byte {offset} is damaged"))
            offset += len(line)
            if event:
                yield event, offset


def readable(line: str | bytes, damaged: Event | None = None) -> Event | None:
    """The event on a line, or `damaged` where the line is none."""
    try:
        return from_line(line)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return damaged


def events_of(path: Path) -> Iterator[Event]:
    """Every event in the log; none where there is no log yet."""
    if path.is_file():  # never a pipe, which would be waited for
        for event, _ in read(path):
            yield event
