"""The event log: what a run says about itself, one JSON object a line. Written once, read by everybody.

Console, reports and health rules are readers, and see a run through the state that `launcher.core.state` folds out of
its events. Times are Unix seconds (UTC).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from launcher.core.bounded_parse import parse_json

PhaseName = Literal["loading", "rollout", "update", "validating", "saving"]
How = Literal["finished", "failed", "stopped"]


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
class Waiting(Event):
    """No process can be started yet."""

    text: str


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


@dataclass(frozen=True, kw_only=True)
class Restarted(Event):
    """An attempt ended by a fault that may pass; the run goes on after `step`, as attempt number `attempt`."""

    step: int
    attempt: int
    cause: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Stalled(Event):
    """Nothing was told for longer than it should take, since `step`; said once for each time that it stands still."""

    step: int
    rank: int | None
    """The process that the others wait for; None where no one is to be told from the others."""
    why: str
    stack: str
    """Where that process stands, its main thread first; empty where it did not answer."""


@dataclass(frozen=True, kw_only=True)
class WentOn(Event):
    """After it stood still for `after_s` seconds."""

    step: int
    after_s: float


@dataclass(frozen=True, kw_only=True)
class Usage(Event):
    """What a training process uses, its machine, and its GPU where it has one; None where nobody tells."""

    rank: int
    host: str
    cpu_percent: float
    """Of one core, with all that it has started, since it was looked at last."""
    memory_bytes: int
    """Resident, with all that it has started; what those share counts for each."""
    machine_cpu_percent: float
    """Of all cores, whoever uses them."""
    machine_memory_bytes: int
    machine_memory_total_bytes: int
    disk_free_bytes: int | None
    """Where the run's folder lies; on a machine that does not see that, where the process's log lies."""
    gpu_percent: float | None = None
    """Of the time, in which anything was computed there."""
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_celsius: float | None = None
    gpu_watts: float | None = None


MARK = "@rlrun "
"""Begins an event on a line of rank 0's output; lines without it are other output, and only kept in its log."""

KINDS: Mapping[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        Started, Waiting, Phase, Loaded, Step, Sample, Saved, Alert, Crashed, Ended, Restarted, Stalled, WentOn, Usage,
    )
}  # fmt: skip
KEPT = (Restarted, Stalled, WentOn, Usage)
"""What became of the run's processes. It is no result of training, so it stays where training goes back a few steps."""
OURS = (*KEPT, Waiting, Ended)
"""What the launcher tells by itself while the processes run; all else it heard from rank 0."""


_NUMBERS: Mapping[str, Callable[[Any], float | None]] = {
    "int": int,
    "float": float,
    "int | None": lambda value: None if value is None else int(value),
    "float | None": lambda value: None if value is None else float(value),
}


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
    node = parse_json(line)
    kind = KINDS.get(node.pop("kind"))
    if kind is None:
        return None
    known = kind.__dataclass_fields__
    for name, of in known.items():
        if name in node and str(of.type) in _NUMBERS:
            node[name] = _NUMBERS[str(of.type)](node[name])
    if kind is Ended and node["how"] not in get_args(How):
        raise ValueError(f"a run does not end {node['how']!r}")
    if kind is Step:
        node["metrics"] = {name: float(value) for name, value in node["metrics"].items()}
    if kind is Crashed:
        node["lines"] = tuple(map(str, node["lines"]))
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
