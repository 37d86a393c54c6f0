"""Files in chunks of rows: blocks of JSON lines, batches of parquet rows, and rows of CSV or of a JSON array as read.

Whatever a file holds, reading it raises nothing: a row that cannot be used comes out as `RefusedRow`, with its place,
the reason and the whole of it. A chunk may be read row by row or, by `columns`, as a table.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from launcher.core.files import open_file
from launcher.core.problems import error_message, short_repr
from launcher.data.records import Line, array_rows, csv_rows
from launcher.data.rows import BOM, MAX_KEPT_BYTES, MAX_ROW_BYTES, RawRow, UnfitRow, check, parse_line, reversible_text
from launcher.spec.data import ENDINGS, RefusedRow

FORMS = "JSONL, JSON, CSV or parquet"
"""What may be in a file, in words."""
BLOCK_BYTES = MAX_ROW_BYTES
"""Bytes read at a time. A block has at most twice as many, and no line that is too long."""
_BATCH_ROWS = 16_384
_BATCH_BYTES = 16 * 2**20
_ROWS_AS_VALUES = 1024
"""Rows of a batch that are Python values at a time."""


@dataclass
class Block:
    """Whole lines of JSON; only the file's last may lack its newline."""

    name: str
    first: int  # number of its first line, from 1
    view: memoryview
    count: int | None = None
    """Number of its lines, if counted."""

    def __len__(self) -> int:
        if self.count is None:
            data = bytes(self.view)
            self.count = data.count(b"\n") + (not data.endswith(b"\n"))
        return self.count

    def rows(self) -> Iterator[RawRow | RefusedRow]:
        lines = bytes(self.view).split(b"\n")
        for number, line in enumerate(lines, start=self.first):
            if line.strip():  # editors, shells and people leave blank lines
                yield parse_line(self.name, number, line)

    def halves(self) -> tuple[Block, Block]:
        """The same lines in two blocks of about half the size."""
        data = bytes(self.view)
        cut = data.find(b"\n", len(data) // 2) + 1
        cut = cut if 0 < cut < len(data) else data.rfind(b"\n", 0, len(data) - 1) + 1
        second = Block(self.name, self.first + data.count(b"\n", 0, cut), self.view[cut:])
        return Block(self.name, self.first, self.view[:cut]), second


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a parquet file, as columns (`pyarrow.RecordBatch`)."""

    name: str
    first: int  # number of its first row, from 1
    columns: Any

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def rows(self) -> Iterator[RawRow | RefusedRow]:
        parts = (self.columns.slice(start, _ROWS_AS_VALUES) for start in range(0, len(self), _ROWS_AS_VALUES))
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

    def halves(self) -> tuple[RowBatch, RowBatch]:
        cut = len(self) // 2
        second = RowBatch(self.name, self.first + cut, self.columns.slice(cut))
        return RowBatch(self.name, self.first, self.columns.slice(0, cut)), second


@dataclass(frozen=True)
class ReadRows:
    """Some rows that were read one by one."""

    found: list[RawRow | RefusedRow]

    def __len__(self) -> int:
        return len(self.found)

    def rows(self) -> Iterator[RawRow | RefusedRow]:
        yield from self.found

    def halves(self) -> tuple[ReadRows, ReadRows]:
        cut = len(self.found) // 2
        return ReadRows(self.found[:cut]), ReadRows(self.found[cut:])


Chunk = Block | RowBatch | ReadRows


class OpenedFile(NamedTuple):
    """A file that holds something."""

    name: str
    file: Any
    raw: Any
    """The file itself, where `file` unpacks it: its position tells how far reading is."""
    form: Literal["lines", "csv", "array", "parquet"]

    def chunks(self) -> Iterator[Chunk | RefusedRow]:
        """Every row of the file once, in its order."""
        empty = True
        for chunk in self._chunks():
            empty = empty and isinstance(chunk, Block) and not bytes(chunk.view).strip()
            yield chunk
        if empty:
            yield RefusedRow(self.name, "the file is empty", "", ends_file=True)

    def _chunks(self) -> Iterator[Chunk | RefusedRow]:
        if self.form == "parquet":
            return _batches(self.name, self.file)
        if self.form == "array":
            return _in_chunks(array_rows(self.name, self.file))
        if self.form == "csv":
            tabs = ".tsv" in self.name.lower()[-7:]
            return _in_chunks(csv_rows(self.name, _lines(self.name, self.file), tabs))
        return _blocks(self.name, self.file)


@contextmanager
def open_rows(name: str) -> Iterator[OpenedFile | RefusedRow]:
    """The file for reading, or why it cannot be read."""
    if reason := ending_problem(name):
        yield RefusedRow(name, reason, "", ends_file=True)
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_file(name))
            head = file.peek(4)
        except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
            yield RefusedRow(name, f"cannot be read: {error_message(error)}", "", ends_file=True)
            return
        if not head:
            yield RefusedRow(name, "the file is empty", "", ends_file=True)
        elif name.lower().endswith(".parquet") or head.startswith(b"PAR1"):
            yield OpenedFile(name, file, file, "parquet")
        elif head.startswith(b"\x1f\x8b"):
            unpacked = stack.enter_context(gzip.GzipFile(fileobj=file))
            yield OpenedFile(name, unpacked, file, _text_form(name, unpacked))
        else:
            yield OpenedFile(name, file, file, _text_form(name, file))


def _text_form(name: str, file: Any) -> Literal["lines", "csv", "array"]:
    """What the text in a file is, by its name and first sign."""
    bare = name.lower().removesuffix(".gz")
    if bare.endswith((".csv", ".tsv")):
        return "csv"
    try:
        head = file.peek(4096) if bare.endswith(".json") else b""
    except (OSError, EOFError, zlib.error):  # whoever reads it will say so
        head = b""
    return "array" if head.removeprefix(BOM).lstrip().startswith(b"[") else "lines"


def ending_problem(name: str) -> str | None:
    """Why a file of this name is not read, or None."""
    if name.lower().endswith(ENDINGS):
        return None
    return f"the ending of {short_repr(name)} is not known; expected {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def read_rows(name: str) -> Iterator[RawRow | RefusedRow]:
    """Every row of the file once, in its order, good or refused."""
    with open_rows(name) as source:
        for chunk in [source] if isinstance(source, RefusedRow) else source.chunks():
            yield from [chunk] if isinstance(chunk, RefusedRow) else chunk.rows()


# ---- JSON lines


def _blocks(name: str, file: Any) -> Iterator[Block | RefusedRow]:
    """Every line of the file once, in order; the beginning of a line in which a gzip file breaks off, too.

    Memory stays bounded: a line too long to parse comes alone, one too long to keep comes without its bytes.
    """
    number, start, more = 1, b"", True
    while more:
        buffer, filled, broken = _read(file, start)
        more = filled == len(buffer)
        first = buffer.find(b"\n", 0, filled)
        if (filled if first < 0 else first) > MAX_ROW_BYTES:
            reason, line, buffer, broken, more = _long(file, buffer[:filled], broken, more)
            yield _refused(name, number, line, reason or broken, ends_file=not reason)
            if not reason:
                return
            number, filled = number + 1, len(buffer)
        end = buffer.rfind(b"\n", 0, filled) + 1
        if not more and not broken:
            end = filled  # the last line needs no newline
        if end:
            block = Block(name, number, memoryview(buffer)[:end])
            yield block
            number += len(block)
        start = bytes(buffer[end:filled])
        if broken:
            yield _refused(name, number, start, broken, ends_file=True)
            return


def _refused(name: str, number: int, line: bytes, reason: str, ends_file: bool) -> RefusedRow:
    return RefusedRow(f"{name}:{number}", reason, reversible_text(line), ends_file=ends_file)


def _read(file: Any, start: bytes) -> tuple[bytearray, int, str]:
    """`start` and what comes next, how much that is, and why there will be no more, where the file breaks off."""
    buffer, filled = bytearray(len(start) + BLOCK_BYTES), len(start)
    buffer[:filled] = start
    view = memoryview(buffer)
    try:
        while filled < len(buffer) and (count := file.readinto1(view[filled:])):
            filled += count
    except (OSError, EOFError, zlib.error) as error:
        return buffer, filled, f"the file breaks off in this line: {error_message(error)}"
    return buffer, filled, ""


def _long(file: Any, start: bytearray, broken: str, more: bool) -> tuple[str, bytes, bytearray, str, bool]:
    """Why the line that `start` begins with is refused, the line, what was read beyond it, why there is no more, and
    whether there may be. No reason where the file breaks off in the line."""
    end = start.find(b"\n")
    kept, rest = start[: len(start) if end < 0 else end], bytearray() if end < 0 else start[end + 1 :]
    size = len(kept)
    while end < 0 and more:
        buffer, filled, broken = _read(file, b"")
        more, end = filled == len(buffer), buffer.find(b"\n", 0, filled)
        piece = buffer[: filled if end < 0 else end]
        size += len(piece)
        kept = kept + piece if size <= MAX_KEPT_BYTES else kept[:0]
        rest = bytearray() if end < 0 else buffer[end + 1 : filled]
    if end < 0 and broken:
        return "", bytes(kept), rest, broken, False
    reason = f"the line has {size:,} bytes; expected at most {MAX_ROW_BYTES:,}"
    if size > MAX_KEPT_BYTES:
        kept, reason = kept[:0], f"{reason} (too long to set aside: it stays in the file only)"
    return reason, bytes(kept), rest, broken, more


# ---- rows that are read one by one


def _lines(name: str, file: Any) -> Iterator[Line]:
    number = 1
    for block in _blocks(name, file):
        if isinstance(block, RefusedRow):
            yield number, block
            number += 1
            continue
        lines = bytes(block.view).split(b"\n")
        yield from enumerate(lines if lines[-1] else lines[:-1], start=number)
        number += len(block)


def _in_chunks(found: Iterator[RawRow | RefusedRow]) -> Iterator[ReadRows]:
    """A few at a time, fewer where they are long."""
    rows, size = list[RawRow | RefusedRow](), 0
    for row in found:
        rows.append(row)
        size += len(row.line or b"") if isinstance(row, RawRow) else len(row.raw)
        if len(rows) == _ROWS_AS_VALUES or size > BLOCK_BYTES:
            yield ReadRows(rows)
            rows, size = [], 0
    if rows:
        yield ReadRows(rows)


# ---- parquet


def _batches(name: str, file: Any) -> Iterator[RowBatch | RefusedRow]:
    """The file's rows in order, and at last why there are no more, where it is damaged."""
    import pyarrow as pa  # noqa: PLC0415  half a second that JSON does not need
    import pyarrow.parquet as pq  # noqa: PLC0415

    row = 0
    try:
        # No I/O threads of Arrow: one that lets go of a Python file while the interpreter ends aborts the process.
        source = pq.ParquetFile(file, pre_buffer=False)
        columns, promised = source.schema_arrow.names, source.metadata.num_rows
        twice = min((column for column, count in Counter(columns).items() if count > 1), default=None)
        if promised and twice is not None:
            yield RefusedRow(name, f"column {short_repr(twice)} stands twice", "", ends_file=True)
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
        yield RefusedRow(f"{name}:{row + 1}" if row else name, reason, "", ends_file=True)
        return
    if row < promised:
        reason = f"the parquet file promises {promised:,} rows and holds {row:,}"
        yield RefusedRow(f"{name}:{row + 1}", reason, "", ends_file=True)


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
