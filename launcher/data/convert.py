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

GROUP_ROWS = 65_536  # rows of a parquet row group, which a reader holds in memory
GROUP_BYTES = 64 * 2**20  # most bytes of a row group
_CHUNK_ROWS = 16_384  # most rows that are Python values at a time

Piece = tuple[pa.Table, pa.StructArray]
"""Good rows in order: the columns to write, and each row's own extra_info."""


class _Row(NamedTuple):
    """A row that was converted by itself."""

    raw: RawRow
    columns: dict[str, Any]
    extra: dict[str, Any]


@dataclass
class Converter:
    """Turns files into prepared rows. Refused rows go to `log`; `read` is called with the bytes read since the last
    call and the rows written so far."""

    files: Files
    kind: Kind
    log: RefusedLog
    read: Callable[[int, int], None]
    extra: Any = None
    """Arrow type of extra_info. Rows that need a wider one raise `parquet_layout.Wider`."""
    templated: bool = False
    """Whether the files have the column `template_fields`; without it, a row that needs it raises `Wider`."""
    rows: int = 0
    """Rows written so far, over all splits."""

    def __post_init__(self) -> None:
        self.extra = self.extra or pa.struct([])

    def write(self, names: Sequence[str], split: Split, path: Path) -> int:
        """Write the files' good rows and return their number. Raises `OSError` on a write error."""
        count = 0
        with ExitStack() as stack:
            writer: _RowGroupWriter | None = None
            for name in names:
                for columns, extras in self._pieces(name):
                    table = parquet_layout.numbered(columns, extras, split, count)
                    count += table.num_rows
                    self.rows += table.num_rows
                    self.log.passed(table.num_rows)
                    writer = writer or stack.enter_context(_RowGroupWriter(path, table.schema))
                    writer.add(table)
        return count

    def _pieces(self, name: str) -> Iterator[Piece]:
        """Convert a file chunk by chunk: in columns where a chunk allows it, otherwise row by row."""
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
            while rows := list(islice(good, _CHUNK_ROWS)):
                fitting = self._keep_fitting(rows)
                extras = pa.array([row.extra for row in fitting], self.extra)
                yield parquet_layout.table([row.columns for row in fitting], self.kind, self.templated), extras

    def _row(self, raw: RawRow | RefusedRow) -> _Row | None:
        """Convert one row; None where it is refused, which is logged."""
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
        """The ground truth as extra value, where it, or that of an earlier row, is not text."""
        truth = row.ground_truth if row.typed_truth is None and self.typed else row.typed_truth
        return {} if truth is None or "reward_model" not in parquet_layout.COLUMNS[self.kind] else {TRUTH: truth}

    @property
    def typed(self) -> bool:
        return self.extra.get_field_index(TRUTH) >= 0

    def _keep_fitting(self, rows: list[_Row]) -> list[_Row]:
        """The rows whose extra_info a column can take; others are refused. Raises `Wider` where its type must grow."""
        extras = [row.extra for row in rows]
        templated = self.templated or any(row.columns[TEMPLATE_FIELDS] for row in rows)
        if not any(extras) and templated == self.templated:
            return rows
        fitting = rows
        try:
            wider = parquet_layout.widened(self.extra, extras)
        except UnfitRow:  # caused by some rows: each is tried alone
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


class _RowGroupWriter:
    """Writes parquet in row groups of GROUP_ROWS rows, or of about GROUP_BYTES; the last has the remainder."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        few = ["data_source", "ability"]  # columns with few distinct values; for others a dictionary saves nothing
        self.writer = pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=few, write_statistics=False)
        self.waiting: list[pa.Table] = []
        self.rows = self.bytes = 0

    def add(self, table: pa.Table) -> None:
        self.waiting.append(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes
        while self.rows >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
            combined, rows = pa.concat_tables(self.waiting), min(self.rows, GROUP_ROWS)
            self.writer.write_table(combined.slice(0, rows), row_group_size=rows)
            remainder = combined.slice(rows)
            self.waiting, self.rows, self.bytes = [remainder], remainder.num_rows, remainder.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.rows:
            self.writer.write_table(pa.concat_tables(self.waiting))
        self.writer.close()
