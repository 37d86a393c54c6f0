"""The numbers of a run as arrays, and where its other events stand: what charts and lists are made of.

An event log is read once and then only where it has grown. Steps become columns, of 12 bytes a value; of every other
event only its place in the file is kept, so texts are read when they are asked for. What a log undoes (`GOES_BACK`) is
left out, as every view does. Logs that nobody asked for lately are forgotten (`LogCache`) and read again.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from launcher.core.bounded_parse import parse_json
from launcher.core.events import (
    GOES_BACK,
    INVALID,
    LARGEST,
    PROCESS_EVENTS,
    YEAR_9999,
    Event,
    Step,
    from_line,
)
from launcher.core.files import open_file, read_lines
from launcher.core.redaction import printable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Kind = TypeVar("Kind", bound=Event)

MOST_BYTES = 160 * 2**20  # of all columns that are kept
NO_STEP = -(2**63)  # of an event that belongs to none
_HEAD = re.compile(
    rb'\{(?:"seq":\d+,)?(?:"attempt":\d+,)?"kind":"(\w+)"(?:,"at":[-+.eE\d]+)?(?:,"step":(-?\d{1,18})\b)?'
)
"""How `core.events.to_line` begins a line: enough to know where an event belongs without reading its texts."""
_STAY = {kind.__name__ for kind in PROCESS_EVENTS}
_BACK = {kind.__name__ for kind in GOES_BACK}


@dataclass(frozen=True)
class MetricColumn:
    """One metric: in which rows it has a value, and the values."""

    rows: NDArray[np.int32]
    values: Floats


@dataclass(frozen=True)
class Columns:
    """What a log holds up to byte `offset`; reading on makes another of it."""

    path: Path
    offset: int = 0
    lines: int = 0
    """The next `seq`."""
    inode: int = 0
    steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Of each row, that is each `Step` that stands, in the order of the log; with `at`, Unix seconds, and `seq`."""
    at: Floats = field(default_factory=lambda: np.empty(0))
    seq: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    series: Mapping[str, MetricColumn] = field(default_factory=dict)
    places: Mapping[str, Ints] = field(default_factory=dict)
    """By the kind of other events that stand, a row of seq, byte, size in bytes and step (or NO_STEP) for each."""

    @property
    def nbytes(self) -> int:
        values = sum(each.values.nbytes + each.rows.nbytes for each in self.series.values())
        return values + 3 * self.steps.nbytes + sum(each.nbytes for each in self.places.values()) + 4096

    def read_on(self) -> Columns:
        return _Reader(self).read()

    def rows_between(self, first: float | None, last: float | None) -> Ints:
        """The rows of these steps, both ends included."""
        low = self.steps >= (-LARGEST if first is None else first)
        return np.nonzero(low & (self.steps <= (LARGEST if last is None else last)))[0]

    def metrics_at(self, row: int) -> dict[str, float]:
        """All metrics of a row."""
        found = {}
        for name, each in self.series.items():
            place = int(np.searchsorted(each.rows, row))
            if place < each.rows.size and each.rows[place] == row:
                found[name] = float(each.values[place])
        return found

    def step_events(self, rows: Iterable[int]) -> Iterator[Step]:
        """These rows as events."""
        for row in rows:
            yield Step(at=float(self.at[row]), step=int(self.steps[row]), metrics=self.metrics_at(row))

    def places_of(self, *kinds: type[Event], steps: Collection[int] | None = None) -> Ints:
        """Places of events of these kinds, in the order of the log; with `steps` those of these or of none."""
        found = [self.places[kind.__name__] for kind in kinds if kind.__name__ in self.places]
        every = np.concatenate(found) if found else np.empty((0, 4), np.int64)
        every = every if steps is None else every[np.isin(every[:, 3], [*steps, NO_STEP])]
        return every[np.argsort(every[:, 0])] if len(found) > 1 else every

    def read(self, places: Ints, *kinds: type[Kind]) -> Iterator[Kind]:
        """The events at these places; one that cannot be read is left out."""
        if not len(places):
            return
        with open_file(self.path) as file:
            for _, offset, size, _ in places.tolist():
                try:
                    event = from_line(os.pread(file.fileno(), size, offset))
                except INVALID:
                    continue
                if isinstance(event, kinds):
                    yield event

    def events(self, *kinds: type[Kind], steps: Collection[int] | None = None) -> Iterator[Kind]:
        """The events of these kinds that stand, in the order of the log."""
        return self.read(self.places_of(*kinds, steps=steps), *kinds)


class _Reader:
    """Reads on from `before`. A line is made into numbers at once, so that the memory of one serves the next."""

    def __init__(self, before: Columns) -> None:
        self._go_on_from(before)

    def _go_on_from(self, found: Columns) -> None:
        self.found = found
        self._steps, self._at, self._seq = array("q"), array("d"), array("q")
        self._tables: dict[tuple[str, ...], tuple[array[int], bytearray]] = {}
        """Of steps that have the same metrics: the row of each, and its values one after the other."""
        self._names: tuple[str, ...] | None = None  # of the step before, as most have the same ones
        self._pack: Callable[..., bytes]
        self._first_row = found.steps.size
        self._places: dict[str, array[int]] = {}

    def read(self) -> Columns:
        with open_file(self.found.path) as file:
            now = os.fstat(file.fileno())
            if now.st_size < self.found.offset or self.found.inode not in (0, now.st_ino):
                self._go_on_from(Columns(self.found.path))  # another file is in its place
            seq, offset = self.found.lines, self.found.offset
            file.seek(offset)
            for line, size, ended in read_lines(file):
                if not ended:
                    break
                self._take(seq, line, offset, size)
                seq, offset = seq + 1, offset + size
        self._settle()
        return replace(self.found, offset=offset, lines=seq, inode=now.st_ino)

    def _take(self, seq: int, line: bytes, offset: int, size: int) -> None:
        """Keep what a step says, of another event its place."""
        if line.find(b'"kind":"Step"', 0, 80) < 0:
            head = _HEAD.match(line)
            kind, step = (head[1].decode(), head[2]) if head else _read_head(line)
            if kind in _BACK:
                self._go_back(line, seq)
            if kind != "Step":  # which another hand may write otherwise
                place = (seq, offset, size, NO_STEP if step is None else int(step))
                self._places.setdefault(kind, array("q")).extend(place)
                return
        try:
            self._take_step(seq, orjson.loads(line))
        except (*INVALID, struct.error):  # it is damaged, or says a number in another way
            with suppress(*INVALID):
                event = from_line(line)
                if isinstance(event, Step):
                    self._take_step(seq, {"kind": "Step", **vars(event)})

    def _take_step(self, seq: int, node: Mapping[str, Any]) -> None:
        """Raises `INVALID` or `struct.error` where the node is no step, before anything is kept."""
        metrics, at = node["metrics"], node.get("at", 0.0)
        as_before = (names := tuple(metrics)) == self._names
        pack = self._pack if as_before else struct.Struct(f"{len(names)}d").pack
        packed = pack(*metrics.values())
        if node["kind"] != "Step" or not 0 <= at < YEAR_9999:
            raise ValueError("it has no time, or is no step")
        row = self._first_row + len(self._steps)
        self._steps.append(node["step"])
        self._at.append(at)
        self._seq.append(seq)
        if not as_before:
            self._names, self._pack = names, pack
            self._rows, self._values = self._tables.setdefault(names, (array("i"), bytearray()))
        self._rows.append(row)
        self._values += packed

    def _go_back(self, line: bytes, seq: int) -> None:
        """Leave out what is undone: rows after the checkpoint's step, and what else was reported since; as
        `core.events.undone` does."""
        self._settle()
        try:
            event = from_line(line)
        except INVALID:
            return
        assert isinstance(event, GOES_BACK)
        of = self.found
        stand = np.nonzero(of.steps <= event.step)[0]
        keep = int(stand[-1]) + 1 if stand.size and event.step else 0
        first = int(of.seq[keep - 1]) + 1 if keep else 0
        series = {}
        for name, each in of.series.items():
            if end := int(np.searchsorted(each.rows, keep)):
                series[name] = MetricColumn(each.rows[:end], each.values[:end])
        places = {
            kind: each if kind in _STAY else each[: np.searchsorted(each[:, 0], first)]
            for kind, each in of.places.items()
        }
        self._go_on_from(replace(
            of, steps=of.steps[:keep], at=of.at[:keep], seq=of.seq[:keep], series=series, places=places
        ))  # fmt: skip

    def _settle(self) -> None:
        """What was kept becomes a part of `found`."""
        of = self.found
        parts = dict[str, list[MetricColumn]]()
        for names, (rows, values) in self._tables.items():
            table = np.ascontiguousarray(np.frombuffer(values).reshape(len(rows), len(names)).T)
            for name, column in zip(names, table, strict=True):
                parts.setdefault(printable(name), []).append(MetricColumn(np.array(rows, np.int32), column))
        series, places = dict(of.series), dict(of.places)
        for name, new in parts.items():
            series[name] = _joined([series[name], *new] if name in series else new)
        for kind, new_places in self._places.items():
            rows4 = np.array(new_places).reshape(-1, 4)
            places[kind] = np.concatenate([places[kind], rows4]) if kind in places else rows4
        self._go_on_from(replace(
            of, steps=np.append(of.steps, self._steps), at=np.append(of.at, self._at), seq=np.append(of.seq, self._seq),
            series=series, places=places,
        ))  # fmt: skip


def _joined(parts: Sequence[MetricColumn]) -> MetricColumn:
    rows = np.concatenate([each.rows for each in parts])
    values = np.concatenate([each.values for each in parts])
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    return MetricColumn(rows, values)


def _read_head(line: bytes) -> tuple[str, int | None]:
    """Kind and step of a line that was written by another hand; an empty kind where it is damaged."""
    try:
        node = parse_json(line)
        step = node.get("step")
        return str(node["kind"]), step if isinstance(step, int) and abs(step) < LARGEST else None
    except INVALID:
        return "", None


class Growing(Protocol):
    """What was read of a file that is only appended to."""

    @property
    def path(self) -> Path: ...

    @property
    def nbytes(self) -> int: ...

    def read_on(self) -> Self:
        """What the file holds now. Raises `OSError`."""


Kept = TypeVar("Kept", bound=Growing)


class LogCache:
    """What was read of the files that were asked for lately, at most `most_bytes` of it together."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._kept = most_bytes, OrderedDict[Path, Growing]()
        self._lock, self._locks = threading.Lock(), dict[Path, threading.Lock]()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(each.nbytes for each in self._kept.values())

    def now(self, empty: Kept) -> Kept:
        """What the file holds now; `empty` where there is none. Raises `OSError`."""
        path = empty.path
        with self._lock:
            mine = self._locks.setdefault(path, threading.Lock())
        with mine:  # two requests of one run read it once
            before = self._kept.get(path)
            try:
                found = (before if isinstance(before, type(empty)) else empty).read_on()
            except FileNotFoundError:
                found = empty
            with self._lock:
                self._kept[path] = found
                self._kept.move_to_end(path)
                size = sum(each.nbytes for each in self._kept.values())
                while size > self._most and len(self._kept) > 1:
                    old, forgotten = self._kept.popitem(last=False)
                    size -= forgotten.nbytes
                    self._locks.pop(old, None)
        return found


class Memo:
    """Answers that take long, by what they were made of; the latest `most` are kept."""

    def __init__(self, most: int = 64) -> None:
        self._most, self._kept, self._lock = most, OrderedDict[Hashable, Any](), threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made
