"""Converts rows of files to prepared parquet: in columns where possible, otherwise row by row, always in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from launcher.data import parquet_layout
from launcher.data.columns import convert_columns
from launcher.data.files import Files
from launcher.data.reader import Chunk, read_chunks
from launcher.data.refused import RefusedLog
from launcher.data.rows import Found, RawRow, UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row, Split

_CHUNK_ROWS = 16_384  # most rows that are Python values at a time
_FORMAT = {"compression": "snappy", "use_dictionary": ["data_source", "ability"], "write_statistics": False}
"""Columns with few distinct values have a dictionary; for others it saves nothing."""


@dataclass
class Converter:
    """Turns files into prepared rows. Refused rows go to `log`; `read` is called with the bytes read since the last
    call and the rows written so far."""

    files: Files
    kind: Kind
    log: RefusedLog
    read: Callable[[int, int], None]
    rows: int = 0
    """Rows written so far, over all splits."""

    split: Split = "train"
    """The split whose rows are written."""
    start: int = 0
    """Number of rows written before those of this split."""

    def __post_init__(self) -> None:
        self.schema = parquet_layout.schema(self.kind, pa.null())
        """The columns of all rows so far. It grows with the rows: their own values have any types."""

    def convert(self, names: Mapping[Split, Sequence[str]], folder: Path) -> dict[Split, int]:
        """Write `folder`/SPLIT.parquet from each split's files, and return its number of good rows. Splits without
        files, or without a good row, get no file. Raises `OSError` on a write error, and `UnfitRow` where rows that
        were written do not fit what later ones make of their columns."""
        counts, parts = dict[Split, int](), dict[Split, list[Path]]()
        for split, split_names in names.items():
            if split_names:
                self.split, self.start = split, self.rows
                parts[split] = self._write_parts(split_names, folder)
                counts[split] = self.rows - self.start
        schema = self.schema
        if "reward_model" in schema.names and pa.types.is_null(schema.field("reward_model").type[1].type):
            schema = parquet_layout.merged(schema, parquet_layout.schema(self.kind, pa.string()))
        for split, paths in parts.items():
            if len(paths) == 1 and pq.read_schema(paths[0]) == schema:
                paths[0].rename(folder / f"{split}.parquet")
            elif paths:
                parquet_layout.join_files(paths, folder / f"{split}.parquet", schema)
                for path in paths:
                    path.unlink()
        return counts

    def _write_parts(self, names: Sequence[str], folder: Path) -> list[Path]:
        """Write the files' good rows; where the schema grows, the next part begins."""
        parts, writer = list[Path](), None
        with ExitStack() as stack:
            for table in self._tables(names):
                if writer is None or writer.schema != self.schema:
                    parts.append(folder / f"{self.split}-{len(parts)}.parquet")
                    writer = stack.enter_context(pq.ParquetWriter(parts[-1], self.schema, **_FORMAT))
                writer.write_table(table)
        return parts

    def _tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """The files' good rows."""
        for name in names:
            for chunk in read_chunks(name, lambda size: self.read(size, self.rows)):
                for table in self._convert(chunk, name):
                    yield table
                    self.rows += table.num_rows
                    self.log.rows += table.num_rows

    def _convert(self, chunk: Chunk, name: str) -> Iterator[pa.Table]:
        """The good rows of a chunk, in columns where it allows that."""
        columns = convert_columns(chunk, self.files, self.kind, name)
        if columns is not None:
            with suppress(UnfitRow):  # caused by some rows, which are found one by one
                yield self._admit(columns)
                return
        good = filter(None, map(self._columns_of, chunk))
        while rows := list(islice(good, _CHUNK_ROWS)):
            try:
                yield self._admit(parquet_layout.table([columns for _, columns in rows]))
            except UnfitRow:
                if fitting := [columns for raw, columns in rows if self._fits(raw, columns)]:
                    yield self._admit(parquet_layout.table(fitting, self.schema))

    def _admit(self, columns: pa.Table) -> pa.Table:
        """The rows with their numbers, in the columns of all rows so far, which grow with them. Raises `UnfitRow`."""
        table = parquet_layout.numbered(columns, self.split, self.rows - self.start)
        self.schema = parquet_layout.merged(self.schema, table.schema)
        return parquet_layout.fitted(table, self.schema)

    def _columns_of(self, raw: Found) -> tuple[RawRow, dict[str, Any]] | None:
        """A row with its columns; None where it is refused, which is logged."""
        row = raw if isinstance(raw, RefusedRow) else self.files.row(raw, self.kind)
        if isinstance(raw, RawRow) and isinstance(row, Row):
            try:
                return raw, parquet_layout.values_of(row, self.kind)
            except UnfitRow as unfit:
                row = raw.refused(str(unfit))
        assert isinstance(row, RefusedRow)
        self.log.keep(row)
        return None

    def _fits(self, raw: RawRow, columns: dict[str, Any]) -> bool:
        """Whether a row's types fit those of the rows before; otherwise it is refused."""
        try:
            self._admit(parquet_layout.table([columns]))
            return True
        except UnfitRow as unfit:
            self.log.keep(raw.refused(str(unfit)))
            return False
