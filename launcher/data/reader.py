"""The one reader of files of rows: JSON lines, a JSON array, CSV or TSV (each also gzip), and parquet.

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.core.files import open_file
from launcher.core.problems import error_message, short_repr
from launcher.data.records import BREAKS, Found, array_rows, csv_rows, ended
from launcher.data.rows import BOM, MAX_ROW_BYTES, RawRow, UnfitRow, check, parse_line, too_long
from launcher.spec.data import ENDINGS, RefusedRow

FORMS = "JSONL, JSON, CSV or parquet"
"""What may be in a file, in words."""
_WRAPPED = re.compile(rb'\{\s*\n\s*(?:"\w+"\s*:\s*(?:"[^"\n]*"|[\w.]+)\s*,\s*)*"(\w+)"\s*:\s*\[\s*\{')
"""How an object of JSON begins that holds a list of rows, written over several lines."""
_UNPACK = {".zst": "zstd -d", ".xz": "xz -d", ".bz2": "bzip2 -d", ".zip": "unzip", ".7z": "7z x", ".tar": "tar xf",
           ".tar.gz": "tar xzf", ".tgz": "tar xzf", ".lz4": "lz4 -d"}  # fmt: skip
"""The command that unpacks a file, by its name's ending."""
CHUNK_BYTES = 2 * 2**20
"""Bytes of lines that are converted together. One bad row costs that its whole chunk is read row by row."""
_BATCH_ROWS, _BATCH_BYTES = 16_384, 16 * 2**20
"""Of parquet: rows and bytes that are in memory at a time."""
_VALUE_ROWS = 1024
"""Rows of parquet that are Python values at a time."""
_PART_ROWS = 256
"""Most rows of CSV or of an array that come together."""


class Chunk(Protocol):
    """Some rows of a file, in its order."""

    def rows(self) -> Iterator[Found]:
        """Each row by itself."""


def read_rows(name: str) -> Iterator[Found]:
    """Every row of the file once, in its order, good or refused."""
    for chunk in read_chunks(name):
        yield from [chunk] if isinstance(chunk, RefusedRow) else chunk.rows()


def read_chunks(name: str, advance: Callable[[int], None] = lambda _: None) -> Iterator[Chunk | RefusedRow]:
    """Every row of the file once, in chunks. `advance` is told how many bytes of the file each has taken."""
    if reason := ending_problem(name):
        yield ended(name, reason)
        return
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(open_file(name))
            head = file.peek(4)
        except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
            yield ended(name, f"cannot be read: {error_message(error)}")
            return
        before, empty = 0, True
        for chunk in _chunks(name, file, head) if head else ():
            empty = empty and isinstance(chunk, Block) and chunk.data.isspace()
            yield chunk
            here = max(file.tell(), before)  # the end of a parquet file is read first
            advance(here - before)
            before = here
        if empty:
            yield ended(name, "the file is empty")


def ending_problem(name: str) -> str | None:
    """Why a file of this name is not read, or None."""
    if name.lower().endswith(ENDINGS):
        return None
    fix = next((f"unpack it: {how} {shlex.quote(name)}" for end, how in _UNPACK.items() if name.lower().endswith(end)),
               f"expected {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")  # fmt: skip
    return f"the ending of {short_repr(name)} is not known; {fix}"


def _chunks(name: str, file: Any, head: bytes) -> Iterator[Chunk | RefusedRow]:
    """The chunks of a file of whichever form: its first bytes decide before its name does."""
    if name.lower().endswith(".parquet") or head.startswith(b"PAR1"):
        return _batches(name, file)
    text = io.BufferedReader(gzip.GzipFile(fileobj=file)) if head.startswith(b"\x1f\x8b") else file
    bare = name.lower().removesuffix(".gz")
    if bare.endswith((".jsonl", ".ndjson")):
        return _blocks(name, text)
    try:
        start = text.peek(4096).removeprefix(BOM).lstrip()
    except BREAKS:  # whoever reads it will say so
        start = b""
    if bare.endswith((".csv", ".tsv")):
        usual = "," if bare.endswith(".csv") else "\t"
        header = start.partition(b"\n")[0]
        separator = next((sign for sign in (usual, ";", "\t") if sign.encode() in header), usual)
        return _together(csv_rows(name, text, separator))
    if wrapped := _WRAPPED.match(start):
        command = f"jq -c '.{wrapped[1].decode()}[]' {shlex.quote(name)} > rows.jsonl"
        return iter([ended(name, f"one object over several lines holds the rows; write one on each line: {command}")])
    return _together(array_rows(name, text)) if start.startswith(b"[") else _blocks(name, text)


@dataclass(frozen=True)
class _Together:
    """Rows that were read one by one."""

    found: tuple[Found, ...]

    def rows(self) -> Iterator[Found]:
        yield from self.found


def _together(rows: Iterator[Found]) -> Iterator[_Together]:
    """Up to _PART_ROWS rows at a time; fewer where they are long."""
    part, size = list[Found](), 0
    for row in rows:
        part.append(row)
        size += len(row.raw if isinstance(row, RefusedRow) else row.line or b"")
        if len(part) == _PART_ROWS or size >= CHUNK_BYTES:
            yield _Together(tuple(part))
            part, size = [], 0
    if part:
        yield _Together(tuple(part))


# ---- lines of JSON


@dataclass(frozen=True)
class Block:
    """Lines of JSON that stand behind one another."""

    name: str
    first: int  # number of the first line, from 1
    data: bytes

    def rows(self) -> Iterator[Found]:
        for number, line in enumerate(self.data.removesuffix(b"\n").split(b"\n"), start=self.first):
            if line.strip():  # editors, shells and people leave blank lines
                yield parse_line(self.name, number, line)


def _blocks(name: str, file: Any) -> Iterator[Block | RefusedRow]:
    """Every line once, in blocks of about CHUNK_BYTES. A line that is too long is refused; where the file breaks off,
    reading ends with the block before."""
    number = 1
    try:
        while data := file.read(CHUNK_BYTES):
            tail = file.readline(MAX_ROW_BYTES + 1)  # of the line in which the block ends
            if len(tail) <= MAX_ROW_BYTES:
                yield Block(name, number, data + tail)
                number += data.count(b"\n") + tail.endswith(b"\n")
                continue
            whole = data.rfind(b"\n") + 1
            if whole:
                yield Block(name, number, data[:whole])
                number += data.count(b"\n")
            size = len(data) - whole
            while not tail.endswith(b"\n"):
                size += len(tail)
                if not (tail := file.readline(CHUNK_BYTES)):
                    break
            yield RefusedRow(f"{name}:{number}", too_long("line", size + len(tail.removesuffix(b"\n"))), "")
            number += 1
    except BREAKS as error:
        yield ended(f"{name}:{number}", f"the file breaks off behind this line: {error_message(error)}")


# ---- parquet


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a parquet file, as columns (`pyarrow.RecordBatch`)."""

    name: str
    first: int  # number of its first row, from 1
    columns: Any

    def rows(self) -> Iterator[Found]:
        parts = (self.columns.slice(at, _VALUE_ROWS) for at in range(0, self.columns.num_rows, _VALUE_ROWS))
        for number, values in enumerate((row for part in parts for row in _python_rows(part)), start=self.first):
            where = f"{self.name}:{number}"
            if isinstance(values, str):
                yield RefusedRow(where, values, "")
                continue
            row = RawRow(where, values, None)
            try:
                check(values)
                yield row
            except UnfitRow as unfit:
                yield row.refused(str(unfit))


def _batches(name: str, file: Any) -> Iterator[RowBatch | RefusedRow]:
    """The file's rows in order, and at last why there are no more, where it is damaged."""
    import pyarrow as pa  # noqa: PLC0415  late, as above
    import pyarrow.parquet as pq  # noqa: PLC0415  late, as above

    row = 0
    try:
        # No I/O threads of Arrow: one that lets go of a Python file while the interpreter ends aborts the process.
        source = pq.ParquetFile(file, pre_buffer=False)
        columns, promised = source.schema_arrow.names, source.metadata.num_rows
        twice = min((column for column, count in Counter(columns).items() if count > 1), default=None)
        if promised and twice is not None:
            yield ended(name, f"column {short_repr(twice)} stands twice")
            return
        groups = range(source.num_row_groups)
        total = sum(source.metadata.row_group(group).total_byte_size for group in groups)
        size = max(min(_BATCH_ROWS, _BATCH_BYTES * promised // max(total, 1)), 1)  # fewer where rows are long
        for group in groups:  # one at a time: a batch may not reach into a broken neighbour
            for batch in source.iter_batches(size, row_groups=[group], use_threads=False):
                yield RowBatch(name, row + 1, batch)
                row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a damaged column name
        reason = f"the parquet file is cut short or damaged, no row from here on: {error_message(error)[:200]}"
        yield ended(f"{name}:{row + 1}" if row else name, reason)
        return
    if row < promised:
        yield ended(f"{name}:{row + 1}", f"the parquet file promises {promised:,} rows and holds {row:,}")


def _python_rows(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows as plain Python values; for one that has no such values (text that is no UTF-8), the reason."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):
        for index in range(batch.num_rows):
            try:
                rows = batch.slice(index, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte offset {error.start} of a text"
            except (ValueError, OverflowError) as error:
                yield f"cannot be turned into plain values: {error_message(error)[:200]}"
            else:
                yield rows[0]
