"""Converts rows of files to prepared parquet: in columns where possible, otherwise row by row, always in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from launcher.data import parquet_layout
from launcher.data.columns import convert_columns, table_of
from launcher.data.files import Files
from launcher.data.formats import TEMPLATE_FIELDS
from launcher.data.parquet_layout import TRUTH
from launcher.data.reader import read_chunks
from launcher.data.refused import RefusedLog
from launcher.data.rows import RawRow, UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row, Split

GROUP_ROWS = 65_536  # of parquet: what a reader holds at a time
GROUP_BYTES = 64 * 2**20  # where rows are long
_TABLE_ROWS = 16_384  # that are kept as Python values at a time

Piece = tuple[pa.Table, pa.StructArray]
"""Good rows in order: the written columns, and what each row has as extra_info."""


class _Row(NamedTuple):
    """A row that was read by itself."""

    raw: RawRow
    columns: dict[str, Any]
    extra: dict[str, Any]


@dataclass
class Converter:
    """Turns files into prepared rows. What is refused goes to `log`; `read` is called with bytes read and rows
    written."""

    files: Files
    kind: Kind
    log: RefusedLog
    read: Callable[[int, int], None]
    extra: Any = None
    """Arrow type of extra_info. Rows that need a wider one raise `parquet_layout.Wider`."""
    templated: bool = False
    """Whether the files have `template_fields`. A row that needs it where they have not raises `Wider`, too."""
    rows: int = 0
    """Rows written so far, of all splits."""

    def __post_init__(self) -> None:
        self.extra = self.extra or pa.struct([])

    def write(self, names: Sequence[str], split: Split, path: Path) -> int:
        """Write the files' good rows and return their number. Raises `OSError` on a write error."""
        count = 0
        with ExitStack() as stack:
            out: _Groups | None = None
            for name in names:
                for columns_, extras in self._pieces(name):
                    table = parquet_layout.numbered(columns_, extras, split, count)
                    count += table.num_rows
                    self.rows += table.num_rows
                    self.log.passed(table.num_rows)
                    out = out or stack.enter_context(_Groups(path, table.schema))
                    out.add(table)
        return count

    def _pieces(self, name: str) -> Iterator[Piece]:
        """In columns where a chunk allows it, otherwise row by row."""
        for chunk in read_chunks(name, lambda count: self.read(count, self.rows)):
            if isinstance(chunk, RefusedRow):
                self.log.keep(chunk)
                continue
            by_row = self.templated or self.typed
            table = None if by_row else convert_columns(table_of(chunk), self.files, self.kind, name)
            if table is not None:
                yield table, pa.nulls(table.num_rows, self.extra)
                continue
            good = (row for row in map(self._row, chunk.rows()) if row)
            while rows := list(islice(good, _TABLE_ROWS)):
                fitting = self._fitting(rows)
                extras = pa.array([row.extra for row in fitting], self.extra)
                yield parquet_layout.table([row.columns for row in fitting], self.kind, self.templated), extras

    def _row(self, raw: RawRow | RefusedRow) -> _Row | None:
        """What is to be written of a row; None where it is refused."""
        row = raw if isinstance(raw, RefusedRow) else self.files.row(raw, self.kind)
        if isinstance(raw, RawRow) and isinstance(row, Row):
            try:
                return _Row(raw, parquet_layout.values_of(row, self.kind), {**row.extra_info, **self._typed_truth(row)})
            except UnfitRow as unfit:
                row = raw.refused(str(unfit))
        assert isinstance(row, RefusedRow)
        self.log.keep(row)
        return None

    def _typed_truth(self, row: Row) -> dict[str, Any]:
        """The ground truth where it, or that of a row before, is no text."""
        truth = row.ground_truth if row.typed_truth is None and self.typed else row.typed_truth
        return {} if truth is None or "reward_model" not in parquet_layout.COLUMNS[self.kind] else {TRUTH: truth}

    @property
    def typed(self) -> bool:
        return self.extra.get_field_index(TRUTH) >= 0

    def _fitting(self, rows: list[_Row]) -> list[_Row]:
        """The rows whose extra_info fits the column's type. Raises `Wider` where they need a wider one."""
        extras = [row.extra for row in rows]
        templated = self.templated or any(row.columns[TEMPLATE_FIELDS] for row in rows)
        if not any(extras) and templated == self.templated:
            return rows
        fitting = rows
        try:
            wider = parquet_layout.widened(self.extra, extras)
        except UnfitRow:  # some row's: each is tried alone
            wider, fitting = self.extra, []
            for row in rows:
                try:
                    wider = parquet_layout.widened(wider, [row.extra])
                    fitting.append(row)
                except UnfitRow as unfit:
                    self.log.keep(row.raw.refused(str(unfit)))
        if (wider, templated) != (self.extra, self.templated):
            raise parquet_layout.Wider(wider, templated)
        return fitting


class _Groups:
    """A parquet file in row groups of GROUP_ROWS rows, or fewer that are long; the last has what is left."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        few = ["data_source", "ability"]  # values; a dictionary of texts that differ is work for nothing
        self.writer = pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=few, write_statistics=False)
        self.waiting: list[pa.Table] = []
        self.rows = self.bytes = 0

    def add(self, table: pa.Table) -> None:
        self.waiting.append(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes
        while self.rows >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
            whole, rows = pa.concat_tables(self.waiting), min(self.rows, GROUP_ROWS)
            self.writer.write_table(whole.slice(0, rows), row_group_size=rows)
            rest = whole.slice(rows)
            self.waiting, self.rows, self.bytes = [rest], rest.num_rows, rest.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.rows:
            self.writer.write_table(pa.concat_tables(self.waiting))
        self.writer.close()
