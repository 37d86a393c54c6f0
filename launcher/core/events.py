"""The event log: what a run reports about itself, one JSON object a line, only ever appended to.

    {"seq":7,"attempt":1,"kind":"Step","at":1700000000.0,"step":3,"metrics":{"train/loss":1.2}}

`seq` is the line's place in the file (0, 1, 2, ...), and `attempt` the attempt (1, 2, ...) during which it was written.
Where an attempt goes back to a checkpoint, an event says so (`GOES_BACK`), and what was reported of training after that
checkpoint's step is undone: the lines stay, and every view leaves them out (`events_of`).

Readers see a run through the state that `launcher.core.state` folds out of its events. Times are Unix seconds (UTC).
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from launcher.core.bounded_parse import parse_json
from launcher.core.episode_record import EpisodeRecord
from launcher.core.files import NewLines, read_lines
from launcher.core.verdict import RunVerdict

PhaseName = Literal["loading", "rollout", "update", "validating", "saving"]
CrashCause = Literal["error", "configuration", "numbers"]
"""An uncaught error; settings or data that do not work; numbers that are not finite, step after step."""
LARGEST = 2**63  # beyond it no count or step is
Int = Annotated[int, Interval(ge=-LARGEST, lt=LARGEST)]
YEAR_9999 = 253370764800.0  # Unix seconds: no later time can be shown
How = Literal["finished", "failed", "stopped"]
Level = Literal["info", "warn", "critical"]
"""Of an alert: worth knowing; worth a look soon; the run is lost, or about to be."""


@dataclass(frozen=True, kw_only=True)
class Event:
    at: Annotated[float, Interval(ge=0, lt=YEAR_9999)] = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The first line: which run."""

    run: str
    algorithm: str
    processes: Int


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """What the run is busy with from now on."""

    name: PhaseName


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """What the run waits for, since `for_s` seconds; an empty text: for nothing any more."""

    text: str
    for_s: Annotated[float, Interval(ge=0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class Loaded(Event):
    """What was read (`rows` + `refused` is all there was), and the steps that it makes."""

    rows: Int
    refused: Int
    val_rows: Int
    val_refused: Int
    steps_per_epoch: Int
    steps: Int


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """A finished step with its metrics; step 0 is the validation before training."""

    step: Int
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Sample(Event):
    """One answer to a held-out prompt, as it was given at `step`; without a reward, `ground_truth` is the reference."""

    step: Int
    data_source: str
    prompt: str
    response: str
    ground_truth: str
    score: float | None
    """NaN where the reward gave none, None where there is nothing to score."""
    episodes: tuple[EpisodeRecord, ...] = ()  # where the answer is an episode, that one

    @property
    def value(self) -> float:
        return math.nan if self.score is None else self.score

    @property
    def heading(self) -> str:
        return "not scored" if self.score is None else f"score {self.score:g}"


@dataclass(frozen=True, kw_only=True)
class TrainingGroup(Event):
    """The answers to one prompt of a training step; long texts are cut. Scores are NaN where the reward gave none,
    advantages are means over an answer's tokens, and `group` counts those of the step that are logged from 1."""

    step: Int
    group: Int
    data_source: str
    prompt: str
    ground_truth: str
    responses: tuple[str, ...]
    scores: tuple[float, ...]
    parts: Mapping[str, tuple[float, ...]]
    advantages: tuple[float, ...]
    episodes: tuple[EpisodeRecord, ...] = ()  # with an environment one for each answer

    def __post_init__(self) -> None:
        if not self.responses or {len(self.scores), len(self.advantages), *map(len, self.parts.values())} != {
            len(self.responses)
        }:
            raise ValueError("there is not one value for each answer")


@dataclass(frozen=True, kw_only=True)
class HeldOutScores(Event):
    """The mean score of each held-out prompt of `data_source` whose answers all have one, in the order of the rows. By
    these, two validations are compared prompt by prompt; some of the answers themselves are `Sample` events."""

    step: Int
    data_source: str
    prompts: tuple[str, ...]
    """`prompt_digest` of each."""
    scores: tuple[float, ...]
    metric: Literal["score", "loss"] = "score"  # loss: what each row adds to `val/loss`, which is their mean

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.scores):
            raise ValueError("there is not one score for each prompt")


@dataclass(frozen=True, kw_only=True)
class HeldOutEpisodes(Event):
    """The episodes of a validation, in the order of the rows. NaN: a fault, or what the environment did not count."""

    step: Int
    rewards: tuple[float, ...]
    turns: tuple[Int, ...]
    outcomes: tuple[str, ...]
    facts: Mapping[str, tuple[float, ...]]
    seconds: float

    def __post_init__(self) -> None:
        if {len(self.turns), len(self.outcomes), *map(len, self.facts.values())} != {len(self.rewards)}:
            raise ValueError("there is not one value for each episode")


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint that is complete on disk; `path` is relative to the run's folder."""

    step: Int
    path: str


@dataclass(frozen=True, kw_only=True)
class WeightsMoved(Event):
    """How far the trained weights are from those that the run began with: |w - start| / |start| of each part of the
    network; of a part that began at 0, such as `lora_B`, its norm."""

    step: Int
    distance: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Alert(Event):
    """Something a person should know; `text` says all of it. Of a health rule's finding the other fields say the same
    in parts."""

    step: Int
    text: str
    level: Level = "warn"
    rule: str = ""
    metric: str = ""
    """The metric that the rule looked at, by the name that the log gives it."""
    since: Int | None = None
    """First step of the evidence."""
    value: float | None = None
    threshold: float | None = None
    """What `value` is compared with."""
    measure: str = ""
    """The rule's expression of `value`, where that is not a value of `metric`: `falls_in_a_row(reward)`."""
    cause: str = ""
    fix: str = ""
    """Arguments in the spelling of the run's engine, and what else helps."""
    source: str = ""
    """Where the threshold is from."""


@dataclass(frozen=True, kw_only=True)
class Distribution(Event):
    """How the values of a metric were spread at `step`: counts[i] of them were in [edges[i], edges[i + 1])."""

    step: Int
    name: str
    edges: tuple[float, ...]
    counts: tuple[Int, ...]


@dataclass(frozen=True, kw_only=True)
class LogProgress(Event):
    """What the progress bar of a log of another program says: steps done and in all."""

    step: Int
    steps: Int
    elapsed_s: float | None = None
    left_s: float | None = None
    per_step_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Crashed(Event):
    """Why a process cannot go on; `lines` are problems or the error, the log has the rest."""

    lines: tuple[str, ...]
    cause: CrashCause

    @property
    def user_error(self) -> bool:  # whether `lines` are problems that a person can solve
        return self.cause != "error"


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """How the run ended, and why."""

    how: How
    why: str = ""
    following: tuple[str, ...] = ()
    """Which command of rlrun helps where something is wrong, and its arguments besides the run."""
    verdict: RunVerdict | None = None
    cause: str = ""
    """The name of the `Cause` of a fault."""


@dataclass(frozen=True, kw_only=True)
class Restarted(Event):
    """An attempt ended by a fault that may pass; the run goes on after `step`, as attempt number `attempt`."""

    step: Int
    attempt: Int
    cause: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """A person went on with the run, after `step`, as attempt number `attempt`."""

    step: Int
    attempt: Int
    steps: Int | None = None
    """Of the whole run, where they were changed."""


@dataclass(frozen=True, kw_only=True)
class Stalled(Event):
    """No event for longer than a step or phase should take, since `step`; once for each stall."""

    step: Int
    rank: Int | None
    """The process that the others wait for; None where that is unknown."""
    why: str
    stack: str
    """The stack of that process, its main thread first; empty where it did not answer."""
    for_s: Annotated[float, Interval(ge=0)] = 0.0
    """Seconds without an event, so far."""


@dataclass(frozen=True, kw_only=True)
class WentOn(Event):
    """The run went on after a stall of `after_s` seconds."""

    step: Int
    after_s: float


@dataclass(frozen=True, kw_only=True)
class Usage(Event):
    """What a training process uses, its machine, and its GPU where it has one; None where that is unknown."""

    rank: Int
    host: str
    cpu_percent: float | None = None
    """Of one core, with its children, since the last measurement."""
    memory_bytes: Int | None = None
    """Resident, with its children; shared memory counts for each."""
    machine_cpu_percent: float | None = None
    """Of all cores, by all processes."""
    machine_memory_bytes: Int | None = None
    machine_memory_total_bytes: Int | None = None
    disk_free_bytes: Int | None = None
    """On the disk of the run's folder; on a machine that cannot see that, on the disk of the process's log."""
    gpu_percent: float | None = None
    """Share of the time in which the GPU was busy."""
    gpu_memory_bytes: Int | None = None
    gpu_memory_total_bytes: Int | None = None
    gpu_celsius: float | None = None
    gpu_watts: float | None = None


MARK = "@rlrun "
"""Begins an event on a line of rank 0's output; lines without it are other output, and only kept in its log."""

KINDS: Mapping[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}
GOES_BACK = (Restarted, Resumed)
"""Undo what was reported of training after their `step`."""
PROCESS_EVENTS = (*GOES_BACK, Stalled, WentOn, Usage)
"""What became of the run's processes. It is no result of training, so it is never undone."""
LAUNCHER_EVENTS = (*PROCESS_EVENTS, Waiting, Ended)
"""What the launcher reports while the processes run; everything else comes from rank 0."""


@dataclass(frozen=True)
class LoggedEvent:
    """An event with its place in the log."""

    seq: int
    attempt: int
    event: Event

    @property
    def line(self) -> str:
        return to_line(self.event, seq=self.seq, attempt=self.attempt)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=vars)


def to_line(event: Event, **place: Any) -> str:
    """One line of JSON, with `seq` and `attempt` first where `place` gives them. Numbers that JSON cannot hold are
    written as the texts NaN, Infinity, -Infinity."""
    node = {**place, "kind": type(event).__name__, **vars(event)}
    if not node.get("episodes", True):
        del node["episodes"]  # answers of a single turn have no episodes to log
    try:
        line = _ENCODER.encode(node)
        line.encode()
    except ValueError:  # a number that is not finite, or a lone surrogate, is rare
        return _ENCODER.encode(writable(node))
    return line


def writable(node: Any) -> Any:
    """`node` with strings in place of the values that JSON or UTF-8 cannot represent."""
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    if isinstance(node, str):
        return node.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be written as UTF-8
    node = vars(node) if is_dataclass(node) else node
    if isinstance(node, dict):
        return {writable(key): writable(value) for key, value in node.items()}
    return [writable(value) for value in node] if isinstance(node, list | tuple) else node


def from_line(line: str | bytes) -> Event | None:
    """The event on a line; None for a kind unknown here. Raises `INVALID` where the line holds no event."""
    return from_node(parse_json(line))


def from_node(node: Any) -> Event | None:
    """As `from_line`, of a line that is parsed already; it takes `kind` out of `node`."""
    kind = KINDS.get(node.pop("kind"))
    if kind is None:
        return None
    if kind is not Step:
        event: Event = _event_parser(kind.__name__).validate_python(node)
        return event
    at, step = float(node.get("at", 0.0)), int(node["step"])  # nearly all events are steps: parsed without pydantic
    if not 0 <= at < YEAR_9999 or not -LARGEST <= step < LARGEST:
        raise ValueError("it has no time, or no step")
    return Step(at=at, step=step, metrics={name: float(value) for name, value in node["metrics"].items()})


@cache
def _event_parser(kind: str) -> Any:
    """The pydantic parser of one kind of event; it ignores unknown fields, which newer versions may write. pydantic is
    loaded late: the log of another program has no such events."""
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(KINDS[kind])


INVALID = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading an event from a line raises where it holds none."""


def is_damage(event: Event) -> bool:
    """Whether `LogReader` gave this event, an alert without a time, for a line that it could not read."""
    return isinstance(event, Alert) and event.at == 0.0


class LogReader:
    """Reads an event log as it grows: every event with a `seq` above `after`, undone ones too."""

    def __init__(self, path: Path, after: int = -1) -> None:
        self.path, self._lines, self._after = path, NewLines(path), after
        self._seq, self._attempt = -1, 1

    def new(self) -> Iterator[LoggedEvent]:
        """Events on whole lines written since the last call; a half-written line waits, a damaged one is an `Alert`."""
        start = self._lines.offset
        for line in self._lines.read_bytes():
            self._seq, begin, start = self._seq + 1, start, self._lines.offset
            if self._seq > self._after and (event := self._read(line, begin)):
                yield LoggedEvent(self._seq, self._attempt, event)

    def _read(self, line: bytes, offset: int) -> Event | None:
        try:
            node = parse_json(line)
            event, self._attempt = from_node(node), int(node.get("attempt", self._attempt))
        except INVALID:
            return Alert(at=0.0, step=0, text=f"{self.path.name}: the line at byte {offset} is damaged")
        return event


def undone(events: Iterable[LoggedEvent]) -> Sequence[range]:
    """Ranges of `seq` whose events are undone unless they are `PROCESS_EVENTS`; ascending, without overlap."""
    steps, ranges = list[tuple[int, int]](), list[range]()  # (step, seq) of the steps not undone
    for logged in events:
        event = logged.event
        if isinstance(event, Step):
            steps.append((event.step, logged.seq))
        elif isinstance(event, GOES_BACK):
            while steps and (event.step == 0 or steps[-1][0] > event.step):
                steps.pop()
            first = steps[-1][1] + 1 if steps else 0
            while ranges and ranges[-1].start >= first:
                ranges.pop()
            ranges.append(range(first, logged.seq))
    return ranges


def is_undone(logged: LoggedEvent, ranges: Sequence[range]) -> bool:
    """Whether an event is undone by what comes after it; `ranges` are those of `undone`."""
    place = bisect(ranges, logged.seq, key=lambda each: each.start) - 1
    return place >= 0 and logged.seq in ranges[place] and not isinstance(logged.event, PROCESS_EVENTS)


def events_of(path: Path, last: int | None = None, more: Sequence[LoggedEvent] = ()) -> Iterator[Event]:
    """The events with a `seq` of at most `last`, by default all there are now, then those of `more`, without undone
    ones, as if the run had never gone back to a checkpoint.

    The log is read twice instead of being kept in memory; without a file there are no events.
    """
    lines, goes_back = scan(path)
    last = lines - 1 if last is None else last

    def read() -> Iterator[LoggedEvent]:
        return chain(takewhile(lambda logged: logged.seq <= last, LogReader(path).new()), more)

    ranges = undone(read()) if goes_back or more else ()
    return (logged.event for logged in read() if not is_undone(logged, ranges))


def scan(path: Path) -> tuple[int, bool]:
    """(number of whole lines, whether any may hold an event of `GOES_BACK`), found without parsing JSON."""
    marks = [f'"kind":"{kind.__name__}"'.encode() for kind in GOES_BACK]
    lines, goes_back = 0, False
    if path.is_file():
        with path.open("rb") as log:
            for line, _, ended in read_lines(log):
                lines += ended
                goes_back = goes_back or any(mark in line for mark in marks)
    return lines, goes_back
