"""Converts rows of files to prepared parquet: in columns where possible, else one by one, always in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launcher.data import columns, parquet_layout
from launcher.data.blocks import Unread, blocks
from launcher.data.columns import GoodRows
from launcher.data.files import Files
from launcher.data.refused import RefusedLog
from launcher.data.rows import OpenedFile, RawRow, batches, open_rows, refuse_line, rows_of
from launcher.data.value_checks import UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Split

GROUP_ROWS = 65_536  # of parquet: what a reader holds at a time
GROUP_BYTES = 64 * 2**20  # where rows are long
_LOOKED_AT = 100  # rows that tell a file's columns
_BATCH_ROWS = 16_384

Piece = tuple[pa.Table, pa.StructArray]
"""Good rows in order: the written columns, and what each brought for extra_info."""


class _Row(NamedTuple):
    """A row that was checked by itself."""

    found: RawRow
    made: dict[str, Any]
    extra: dict[str, Any]


@dataclass
class Converter:
    """Turns files into prepared rows. What is refused goes to `log`; `read` hears of bytes read and rows written."""

    files: Files
    kind: Kind
    log: RefusedLog
    read: Callable[[int, int], None]
    extra: Any = None
    """Arrow type of extra_info. Rows that need a wider one raise `parquet_layout.Wider`."""
    rows: int = 0
    """Rows written so far, of all splits."""

    def __post_init__(self) -> None:
        self.extra = self.extra or pa.struct([])

    def write(self, names: Sequence[str], split: Split, path: Path) -> int:
        """Write the files' good rows and return their number. Raises `OSError` on a write error."""
        count = 0
        with ExitStack() as stack:
            out: _Groups | None = None
            for table, extras in self._pieces(names):
                made = parquet_layout.numbered(table, self._widened(extras), split, count)
                count += made.num_rows
                self.rows += made.num_rows
                self.log.passed(made.num_rows)
                out = out or stack.enter_context(_Groups(path, made.schema))
                out.add(made)
        return count

    def _widened(self, extras: pa.StructArray) -> pa.StructArray:
        if extras.type == self.extra:
            return extras
        have = {of.name: extras.field(place) for place, of in enumerate(extras.type)}
        if not have.keys() <= {of.name for of in self.extra}:
            raise parquet_layout.Wider(parquet_layout.merged(self.extra, extras.type))
        parts = [
            have[of.name].cast(of.type) if of.name in have else pa.nulls(len(extras), of.type) for of in self.extra
        ]
        return pa.StructArray.from_arrays(parts, fields=list(self.extra))

    def _pieces(self, names: Sequence[str]) -> Iterator[Piece]:
        for name in names:
            with open_rows(name) as source:
                if isinstance(source, RefusedRow):
                    self.log.keep(source)
                else:
                    yield from self._batches(name, source) if source.parquet else self._blocks(name, source)

    # ---- JSON lines

    def _blocks(self, name: str, source: OpenedFile) -> Iterator[Piece]:
        shape, first, empty, before = None, True, True, 0
        for found in blocks(source.file):
            empty = False
            if isinstance(found, Unread):
                self.log.keep(refuse_line(name, found))
                continue
            if first:
                rows = [row.values for row in rows_of(name, found, range(_LOOKED_AT)) if isinstance(row, RawRow)]
                shape, first = columns.column_shape(columns.sample_types(rows), self.files, self.kind), False
            pieces = columns.parse_block(found, shape) if shape else [(found, None)]
            for block, table in pieces:
                if shape is None or table is None:
                    yield from self._one_by_one(rows_of(name, block))
                else:
                    taken = columns.take_good_rows(table, shape, self.files, self.kind)
                    yield from self._merged(taken, rows_of(name, block, set(taken.others.tolist())))
            here = source.raw.tell()
            self.read(here - before, self.rows)
            before = here
        if empty:
            self.log.keep(RefusedRow(name, "the file is empty", ""))

    # ---- parquet

    def _batches(self, name: str, source: OpenedFile) -> Iterator[Piece]:
        shape, first, before = None, True, 0
        for found in batches(name, source.file, _BATCH_ROWS):
            if isinstance(found, RefusedRow):
                self.log.keep(found)
                continue
            table = columns.plain(pa.Table.from_batches([found.columns]))
            if first:
                fields = dict(zip(table.schema.names, table.schema.types, strict=True))
                shape, first = columns.column_shape(fields, self.files, self.kind), False
            if shape is None or not columns.readable(table):
                yield from self._one_by_one(found.rows(name))
            else:
                taken = columns.take_good_rows(table, shape, self.files, self.kind)
                yield from self._merged(taken, found.rows(name, set(taken.others.tolist())))
            here = max(source.raw.tell(), before)  # the end of a parquet file is read first
            self.read(here - before, self.rows)
            before = here

    # ---- both

    def _merged(self, taken: GoodRows, found: Iterator[RawRow | RefusedRow]) -> Iterator[Piece]:
        """The rows taken in columns, and in their places those of the others (`found`) that are good."""
        if not len(taken.others):
            yield taken.columns, self._widened(taken.extras)
            return
        places, rows = list[int](), list[_Row]()
        for place, row in zip(taken.others, self._sifted(found), strict=True):
            if row:
                places.append(place)
                rows.append(row)
        fitting = self._fitting(rows)
        if not fitting:
            if len(taken.places):
                yield taken.columns, self._widened(taken.extras)
            return
        table, extras = self._table([rows[place] for place in fitting])
        order = pa.array(np.argsort(np.concatenate([taken.places, [places[place] for place in fitting]])))
        whole = pa.concat_tables([taken.columns, table]).take(order)
        yield whole, pa.concat_arrays([self._widened(taken.extras), extras]).take(order)

    def _one_by_one(self, found: Iterator[RawRow | RefusedRow]) -> Iterator[Piece]:
        sifted = (row for row in self._sifted(found) if row)
        while rows := list(islice(sifted, _BATCH_ROWS)):
            yield self._table([rows[place] for place in self._fitting(rows)])

    def _sifted(self, found: Iterator[RawRow | RefusedRow]) -> Iterator[_Row | None]:
        """What is to be written of each row, None where it is refused."""
        for item in found:
            made = item if isinstance(item, RefusedRow) else self._made(item)
            if isinstance(made, RefusedRow):
                self.log.keep(made)
                yield None
            else:
                yield made

    def _made(self, found: RawRow) -> _Row | RefusedRow:
        row = self.files.row(found, self.kind)
        if isinstance(row, RefusedRow):
            return row
        try:
            return _Row(found, parquet_layout.values_of(row, self.kind), dict(row.extra_info))
        except UnfitRow as unscorable:
            return found.refused(str(unscorable))

    def _fitting(self, rows: Sequence[_Row]) -> list[int]:
        """The rows whose extra_info fits the column's type. Raises `Wider` where they need a wider one."""
        extras = [row.extra for row in rows]
        if not any(extras):
            return list(range(len(rows)))
        try:
            wider, fitting = parquet_layout.widened(self.extra, extras), list(range(len(rows)))
        except UnfitRow:  # some row's; which ones shows when each is asked alone
            wider, fitting = self.extra, []
            for place, row in enumerate(rows):
                try:
                    wider = parquet_layout.widened(wider, [row.extra])
                    fitting.append(place)
                except UnfitRow as unscorable:
                    self.log.keep(row.found.refused(str(unscorable)))
        if wider != self.extra:
            raise parquet_layout.Wider(wider)
        return fitting

    def _table(self, rows: Sequence[_Row]) -> Piece:
        return parquet_layout.table([row.made for row in rows], self.kind), pa.array(
            [row.extra for row in rows], self.extra
        )


class _Groups:
    """A parquet file in row groups of GROUP_ROWS rows, or fewer that are long; the last has what is left."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        few = ["data_source", "ability"]  # values; a dictionary of texts that differ is work for nothing
        self.writer = pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=few, write_statistics=False)
        self.waiting: list[pa.Table] = []
        self.held = self.bytes = 0

    def add(self, table: pa.Table) -> None:
        self.waiting.append(table)
        self.held += table.num_rows
        self.bytes += table.nbytes
        while self.held >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
            whole, rows = pa.concat_tables(self.waiting), min(self.held, GROUP_ROWS)
            self.writer.write_table(whole.slice(0, rows), row_group_size=rows)
            rest = whole.slice(rows)
            self.waiting, self.held, self.bytes = [rest], rest.num_rows, rest.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.held:
            self.writer.write_table(pa.concat_tables(self.waiting))
        self.writer.close()
