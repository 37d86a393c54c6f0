"""A run's metrics as arrays, with an index of its other events: what charts and lists are made of.

An event log is read incrementally: once, then only its new bytes. Steps become columns of 12 bytes a value; of every
other event only its byte range is kept, so its text is read on demand. What a log undoes (`GOES_BACK`) is dropped,
as in every view.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

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
from launcher.core.files import open_file
from launcher.core.redaction import printable
from launcher.server.live import BegunAnew, LogPosition

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

EventT = TypeVar("EventT", bound=Event)

NO_STEP = -(2**63)  # the step of an event that has none
_PROCESS_KINDS = {kind.__name__ for kind in PROCESS_EVENTS}
_UNDOING_KINDS = {kind.__name__ for kind in GOES_BACK}


@dataclass(frozen=True)
class MetricColumn:
    """One metric: the rows that have a value, in ascending order, and the values; both [V]."""

    rows: NDArray[np.int32]
    values: Floats


@dataclass(frozen=True)
class Columns:
    """What a log holds up to `end`; `read_on` returns a new value and leaves this one unchanged."""

    end: LogPosition
    """Up to where the log was read."""
    steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[R], as `at` (Unix seconds) and `seq`: a row is a `Step` event that is not undone, in log order."""
    at: Floats = field(default_factory=lambda: np.empty(0))
    seq: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    series: Mapping[str, MetricColumn] = field(default_factory=dict)
    places: Mapping[str, Ints] = field(default_factory=dict)
    """By kind, the other events that are not undone, as [N, 4]: seq, byte offset, size in bytes, step (or NO_STEP)."""

    @property
    def nbytes(self) -> int:
        values = sum(column.values.nbytes + column.rows.nbytes for column in self.series.values())
        return values + 3 * self.steps.nbytes + sum(column.nbytes for column in self.places.values()) + 4096

    @classmethod
    def of(cls, path: Path) -> Columns:
        """What the log at `path` holds; nothing where there is none."""
        return cls(LogPosition(path)).read_on()

    def read_on(self) -> Columns:
        """What the log holds now; only what was appended is read, unless it was begun anew."""
        try:
            return _Reader(self).read()
        except BegunAnew:
            return Columns.of(self.end.path)

    def rows_between(self, first: float | None, last: float | None) -> Ints:
        """Indices of the rows with `first` <= step <= `last`; None is no bound."""
        low = self.steps >= (-LARGEST if first is None else first)
        return np.nonzero(low & (self.steps <= (LARGEST if last is None else last)))[0]

    def metrics_at(self, row: int) -> dict[str, float]:
        """The metrics that have a value in this row."""
        metrics = {}
        for name, column in self.series.items():
            index = int(np.searchsorted(column.rows, row))
            if index < column.rows.size and column.rows[index] == row:
                metrics[name] = float(column.values[index])
        return metrics

    def places_of(self, *kinds: type[Event], steps: Collection[int] | None = None) -> Ints:
        """[N, 4]: places of events of these kinds, in log order; with `steps` those of these steps or of no step."""
        parts = [self.places[kind.__name__] for kind in kinds if kind.__name__ in self.places]
        places = np.concatenate(parts) if parts else np.empty((0, 4), np.int64)
        places = places if steps is None else places[np.isin(places[:, 3], [*steps, NO_STEP])]
        return places[np.argsort(places[:, 0])] if len(parts) > 1 else places

    def read(self, places: Ints, *kinds: type[EventT]) -> Iterator[EventT]:
        """The events at these places; unreadable ones are skipped. Raises `OSError` where the log cannot be opened."""
        if not len(places):
            return
        with open_file(self.end.path) as file:
            for _, offset, size, _ in places.tolist():
                try:
                    event = from_line(os.pread(file.fileno(), size, offset))
                except INVALID:
                    continue
                if isinstance(event, kinds):
                    yield event

    def events(self, *kinds: type[EventT], steps: Collection[int] | None = None) -> Iterator[EventT]:
        """The events of these kinds that are not undone, in log order."""
        return self.read(self.places_of(*kinds, steps=steps), *kinds)


class _Reader:
    """Reads a log from where `before` ends. Each line is parsed and packed at once, so parsed lines do not pile up."""

    def __init__(self, before: Columns) -> None:
        self._reset_to(before)

    def _reset_to(self, columns: Columns) -> None:
        self.found = columns
        self._steps, self._at, self._seq = array("q"), array("d"), array("q")
        self._tables: dict[tuple[str, ...], tuple[array[int], bytearray]] = {}
        """By metric names: the rows of the steps that have exactly these metrics, and their packed float64 values."""
        self._names: tuple[str, ...] | None = None  # those of the previous step: most steps have the same
        self._pack: Callable[..., bytes]
        self._first_row = columns.steps.size
        self._places: dict[str, array[int]] = {}

    def read(self) -> Columns:
        """Raises `BegunAnew`."""
        end = replace(self.found.end)
        for offset, line in end.lines():
            self._add_line(end.seq - 1, line, offset, end.offset - offset)
        self._flush_buffers()
        return replace(self.found, end=end)

    def _add_line(self, seq: int, line: bytes, offset: int, size: int) -> None:
        """Add a step's values to the columns; of any other event add the place."""
        node = _parse(line)
        if (kind := str(node.get("kind", ""))) != "Step":
            if kind in _UNDOING_KINDS:
                self._drop_undone(line, seq)
            step = node.get("step")
            place = seq, offset, size, step if isinstance(step, int) and abs(step) < LARGEST else NO_STEP
            self._places.setdefault(kind, array("q")).extend(place)
            return
        try:
            self._add_step(seq, node)
        except (*INVALID, struct.error):  # damaged, or a number is written as a text such as "NaN"
            with suppress(*INVALID):
                event = from_line(line)
                if isinstance(event, Step):
                    self._add_step(seq, vars(event))

    def _add_step(self, seq: int, node: Mapping[str, Any]) -> None:
        """Raises `INVALID` or `struct.error` where the node is not a valid step; nothing is added then."""
        metrics, at = node["metrics"], node.get("at", 0.0)
        as_before = (names := tuple(metrics)) == self._names
        pack = self._pack if as_before else struct.Struct(f"{len(names)}d").pack
        packed = pack(*metrics.values())
        if not 0 <= at < YEAR_9999:
            raise ValueError("it has no time")
        row = self._first_row + len(self._steps)
        self._steps.append(node["step"])
        self._at.append(at)
        self._seq.append(seq)
        if not as_before:
            self._names, self._pack = names, pack
            self._rows, self._values = self._tables.setdefault(names, (array("i"), bytearray()))
        self._rows.append(row)
        self._values += packed

    def _drop_undone(self, line: bytes, seq: int) -> None:
        """Drop what the event undoes, as `core.events.undone` does: rows after the checkpoint's step, and the other
        events since, but for those of processes (`PROCESS_EVENTS`)."""
        self._flush_buffers()
        try:
            event = from_line(line)
        except INVALID:
            return
        assert isinstance(event, GOES_BACK)
        old = self.found
        kept_rows = np.nonzero(old.steps <= event.step)[0]
        n_rows = int(kept_rows[-1]) + 1 if kept_rows.size and event.step else 0
        undone_seq = int(old.seq[n_rows - 1]) + 1 if n_rows else 0
        series = {}
        for name, column in old.series.items():
            if end := int(np.searchsorted(column.rows, n_rows)):
                series[name] = MetricColumn(column.rows[:end], column.values[:end])
        places = {
            kind: column if kind in _PROCESS_KINDS else column[: np.searchsorted(column[:, 0], undone_seq)]
            for kind, column in old.places.items()
        }
        self._reset_to(replace(
            old, steps=old.steps[:n_rows], at=old.at[:n_rows], seq=old.seq[:n_rows], series=series, places=places
        ))  # fmt: skip

    def _flush_buffers(self) -> None:
        """Append the buffered rows and places to `found`, and start with empty buffers."""
        old = self.found
        new_columns = dict[str, list[MetricColumn]]()
        for names, (rows, values) in self._tables.items():
            table = np.ascontiguousarray(np.frombuffer(values).reshape(len(rows), len(names)).T)
            for name, column in zip(names, table, strict=True):
                new_columns.setdefault(printable(name), []).append(MetricColumn(np.array(rows, np.int32), column))
        series, places = dict(old.series), dict(old.places)
        for name, added in new_columns.items():
            series[name] = _join_columns([series[name], *added] if name in series else added)
        for kind, new_places in self._places.items():
            added_places = np.array(new_places).reshape(-1, 4)
            places[kind] = np.concatenate([places[kind], added_places]) if kind in places else added_places
        self._reset_to(replace(
            old, steps=np.append(old.steps, self._steps), at=np.append(old.at, self._at),
            seq=np.append(old.seq, self._seq), series=series, places=places,
        ))  # fmt: skip


def _join_columns(parts: Sequence[MetricColumn]) -> MetricColumn:
    rows = np.concatenate([part.rows for part in parts])
    values = np.concatenate([part.values for part in parts])
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    return MetricColumn(rows, values)


def _parse(line: bytes) -> dict[str, Any]:
    """A line's object; empty where it is damaged."""
    for parse in (orjson.loads, parse_json):  # the first is fast, and refuses NaN, which other programs may write
        with suppress(*INVALID):
            node = parse(line)
            return node if isinstance(node, dict) else {}
    return {}
