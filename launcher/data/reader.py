"""The only reader of row files: JSON lines, a JSON array, CSV or TSV (each also gzip), and parquet.

Reading raises nothing, whatever a file holds: a row that cannot be used comes out as `RefusedRow` with its place and
the reason, and memory stays bounded. Rows come in chunks. A `Block` or a `RowBatch` of plain columns is
converted by `columns` without looking at each row.
"""

from __future__ import annotations

import gzip
import io
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

from launcher.core.files import open_file
from launcher.core.problems import error_message, short_repr
from launcher.data.records import BREAKS, array_rows, csv_rows, ended
from launcher.data.rows import BOM, MAX_ROW_BYTES, Found, RawRow, UnfitRow, check, parse_row, too_long
from launcher.spec.data import ENDINGS, RefusedRow

FORMS = "JSONL, JSON, CSV or parquet"
"""The file formats, as messages name them."""
_WRAPPED_ROWS = re.compile(rb'\{\s*\n\s*(?:"\w+"\s*:\s*(?:"[^"\n]*"|[\w.]+)\s*,\s*)*"(\w+)"\s*:\s*\[\s*\{')
"""Matches the beginning of a multi-line JSON object that wraps a list of rows."""
_UNPACK = {".zst": "zstd -d", ".xz": "xz -d", ".bz2": "bzip2 -d", ".zip": "unzip", ".7z": "7z x", ".tar": "tar xf",
           ".tar.gz": "tar xzf", ".tgz": "tar xzf", ".lz4": "lz4 -d"}  # fmt: skip
"""Commands that unpack a file, by the ending of its name."""
CHUNK_BYTES = 2 * 2**20
"""Bytes of lines that are converted together. One bad row makes its whole chunk be read row by row."""
_BATCH_ROWS, _BATCH_BYTES = 16_384, 16 * 2**20
"""Most rows and bytes of parquet in memory at a time."""
_VALUE_ROWS = 1024
"""Most rows of parquet that are Python values at a time."""
_GROUP_ROWS = 4096
"""Most rows of CSV or of a JSON array in one chunk."""


Chunk = Iterable[Found]
"""Consecutive rows of a file, good or refused."""


def read_rows(name: str) -> Iterator[Found]:
    """Every row of the file once, in file order, good or refused."""
    return chain.from_iterable(read_chunks(name))


def read_chunks(name: str, advance: Callable[[int], None] = lambda _: None) -> Iterator[Chunk]:
    """Every row of the file once, in chunks. `advance` is called with the bytes of the file that each chunk took."""
    if reason := ending_problem(name):
        yield [ended(name, reason)]
        return
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(open_file(name))
            head = file.peek(4)
        except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
            yield [ended(name, f"cannot be read: {error_message(error)}")]
            return
        read_to, empty = 0, True
        for chunk in _chunks(name, file, head) if head else ():
            empty = empty and isinstance(chunk, Block) and chunk.data.isspace()
            yield chunk
            position = max(file.tell(), read_to)  # of parquet the end is read first
            advance(position - read_to)
            read_to = position
        if empty:
            yield [ended(name, "the file is empty")]


def ending_problem(name: str) -> str | None:
    """Why a file cannot be read by the ending of its name, or None."""
    if name.lower().endswith(ENDINGS):
        return None
    fix = next((f"unpack it: {how} {shlex.quote(name)}" for end, how in _UNPACK.items() if name.lower().endswith(end)),
               f"expected {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")  # fmt: skip
    return f"the ending of {short_repr(name)} is not known; {fix}"


def _chunks(name: str, file: Any, head: bytes) -> Iterator[Chunk]:
    """The chunks of a file in any format; its first bytes (`head`) take precedence over its name."""
    if name.lower().endswith(".parquet") or head.startswith(b"PAR1"):
        return _batches(name, file)
    text = io.BufferedReader(gzip.GzipFile(fileobj=file)) if head.startswith(b"\x1f\x8b") else file
    base_name = name.lower().removesuffix(".gz")
    if base_name.endswith((".jsonl", ".ndjson")):
        return _blocks(name, text)
    try:
        start = text.peek(4096).removeprefix(BOM).lstrip()
    except BREAKS:  # reading the rows reports the error
        start = b""
    if base_name.endswith((".csv", ".tsv")):
        default = "," if base_name.endswith(".csv") else "\t"
        header = start.partition(b"\n")[0]
        separator = next((sign for sign in (default, ";", "\t") if sign.encode() in header), default)
        return _group_rows(csv_rows(name, text, separator))
    if wrapped := _WRAPPED_ROWS.match(start):
        command = f"jq -c '.{wrapped[1].decode()}[]' {shlex.quote(name)} > rows.jsonl"
        return iter([[ended(name, f"one object over several lines holds the rows; write one on each line: {command}")]])
    return _group_rows(array_rows(name, text)) if start.startswith(b"[") else _blocks(name, text)


def _group_rows(rows: Iterator[Found]) -> Iterator[Chunk]:
    """Group up to _GROUP_ROWS rows, or about CHUNK_BYTES of them."""
    group, size = list[Found](), 0
    for row in rows:
        group.append(row)
        size += len(row.raw if isinstance(row, RefusedRow) else row.line or b"")
        if len(group) == _GROUP_ROWS or size >= CHUNK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


# ---- lines of JSON


@dataclass(frozen=True)
class Block:
    """Consecutive lines of JSON."""

    name: str
    first: int  # number of the first line, from 1
    data: bytes

    def __iter__(self) -> Iterator[Found]:
        for number, line in enumerate(self.data.removesuffix(b"\n").split(b"\n"), start=self.first):
            if line.strip():  # editors, shells and people leave blank lines
                yield parse_row(f"{self.name}:{number}", line)


def _blocks(name: str, file: Any) -> Iterator[Chunk]:
    """Every line once, in blocks of about CHUNK_BYTES. A line that is too long is refused; where the file breaks off,
    reading ends after the block before."""
    number = 1
    try:
        while data := file.read(CHUNK_BYTES):
            tail = file.readline(MAX_ROW_BYTES + 1)  # the rest of the block's last line
            if len(tail) <= MAX_ROW_BYTES:
                yield Block(name, number, data + tail)
                number += data.count(b"\n") + tail.endswith(b"\n")
                continue
            complete = data.rfind(b"\n") + 1
            if complete:
                yield Block(name, number, data[:complete])
                number += data.count(b"\n")
            size = len(data) - complete
            while not tail.endswith(b"\n"):
                size += len(tail)
                if not (tail := file.readline(CHUNK_BYTES)):
                    break
            yield [RefusedRow(f"{name}:{number}", too_long("line", size + len(tail.removesuffix(b"\n"))), "")]
            number += 1
    except BREAKS as error:
        yield [ended(f"{name}:{number}", f"the file breaks off behind this line: {error_message(error)}")]


# ---- parquet


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a parquet file, as columns (`pyarrow.RecordBatch`)."""

    name: str
    first: int  # number of its first row, from 1
    columns: Any

    def __iter__(self) -> Iterator[Found]:
        for at in range(0, self.columns.num_rows, _VALUE_ROWS):
            yield from self._rows(at, self.columns.slice(at, _VALUE_ROWS))

    def _rows(self, at: int, part: Any) -> Iterator[Found]:
        """The rows of a part as Python values, one by one where some have none, such as text that is not UTF-8."""
        try:
            values = part.to_pylist()
        except (ValueError, OverflowError) as error:
            if part.num_rows == 1:
                yield RefusedRow(f"{self.name}:{self.first + at}", _describe(error), "")
            else:
                for index in range(part.num_rows):
                    yield from self._rows(at + index, part.slice(index, 1))
            return
        for number, each in enumerate(values, start=self.first + at):
            row = RawRow(f"{self.name}:{number}", each, None)
            try:
                check(each)
                yield row
            except UnfitRow as unfit:
                yield row.refused(str(unfit))


def _describe(error: Exception) -> str:
    """Why Arrow cannot turn a row into Python values."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte offset {error.start} of a text"
    return f"cannot be turned into plain values: {error_message(error)[:200]}"


def _batches(name: str, file: Any) -> Iterator[Chunk]:
    """The file's rows in order; where the file is damaged, a refused row with the reason ends it."""
    import pyarrow as pa  # noqa: PLC0415  late, as above
    import pyarrow.parquet as pq  # noqa: PLC0415  late, as above

    row = 0
    try:
        # No I/O threads: one of Arrow's that releases a Python file at interpreter exit aborts the process.
        source = pq.ParquetFile(file, pre_buffer=False)
        columns, n_rows = source.schema_arrow.names, source.metadata.num_rows
        duplicate = min((column for column, count in Counter(columns).items() if count > 1), default=None)
        if n_rows and duplicate is not None:
            yield [ended(name, f"column {short_repr(duplicate)} stands twice")]
            return
        groups = range(source.num_row_groups)
        total = sum(source.metadata.row_group(group).total_byte_size for group in groups)
        size = max(min(_BATCH_ROWS, _BATCH_BYTES * n_rows // max(total, 1)), 1)  # fewer where rows are long
        for group in groups:  # one group at a time: a batch must not reach into a damaged one
            for batch in source.iter_batches(size, row_groups=[group], use_threads=False):
                yield RowBatch(name, row + 1, batch)
                row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: a damaged column name
        reason = f"the parquet file is cut short or damaged, no row from here on: {error_message(error)[:200]}"
        yield [ended(f"{name}:{row + 1}" if row else name, reason)]
        return
    if row < n_rows:
        yield [ended(f"{name}:{row + 1}", f"the parquet file promises {n_rows:,} rows and holds {row:,}")]
