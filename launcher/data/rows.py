"""Files to raw rows, one at a time: JSON lines (plain or gzip) and parquet. Nothing here knows what a prompt is.

Whatever a file holds, reading it raises nothing: a row that cannot be used comes out as `RefusedRow`, with its place,
the reason and the whole of it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Collection, Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launcher.core.problems import error_message, short_repr
from launcher.data.blocks import BOM, Block, Unread, blocks
from launcher.data.value_checks import MAX_DEPTH, TOO_DEEP, UnfitRow, check, type_name
from launcher.spec.data import RefusedRow

ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz", ".parquet")

_BATCH_ROWS = 1024
_BATCH_BYTES = 16 * 2**20


class RawRow(NamedTuple):
    """One row as it stands in its file."""

    where: str  # file:line, or file:row for parquet; both count from 1
    values: dict[str, Any]
    line: bytes | None  # without its newline; parquet has no lines

    def refused(self, reason: str) -> RefusedRow:
        """The row set aside. A parquet row is written as JSON: its own bytes lie spread over the columns."""
        raw = json.dumps(self.values, default=repr) if self.line is None else _raw(self.line)
        return RefusedRow(self.where, reason, raw)


def ending_problem(name: str) -> str | None:
    """Why a file of this name is not read, or None."""
    if name.lower().endswith(ENDINGS):
        return None
    return f"the ending of {short_repr(name)} is not known; expected {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


class OpenedFile(NamedTuple):
    """A file that holds something: the bytes of lines, or parquet."""

    file: Any
    raw: Any
    """The file itself, where `file` unpacks it: its position tells how far reading is."""
    parquet: bool


@contextmanager
def open_rows(name: str) -> Iterator[OpenedFile | RefusedRow]:
    """The file for reading, or why it cannot be read."""
    if reason := ending_problem(name):
        yield RefusedRow(name, reason, "")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
            head = file.peek(4)
        except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
            yield RefusedRow(name, f"cannot be read: {error_message(error)}", "")
            return
        if not head:
            yield RefusedRow(name, "the file is empty", "")
        elif name.lower().endswith(".parquet") or head.startswith(b"PAR1"):
            yield OpenedFile(file, file, True)
        elif head.startswith(b"\x1f\x8b"):
            yield OpenedFile(stack.enter_context(gzip.GzipFile(fileobj=file)), file, False)
        else:
            yield OpenedFile(file, file, False)


def read_rows(name: str) -> Iterator[RawRow | RefusedRow]:
    """Every row of the file once, in its order, good or refused."""
    with open_rows(name) as source:
        if isinstance(source, RefusedRow):
            yield source
        elif source.parquet:
            yield from _parquet_rows(name, source.file)
        else:
            yield from _json_rows(name, source.file)


def _raw(line: bytes) -> str:
    """The line as text that can be turned back into the same bytes, whatever they are."""
    return line.decode("utf-8", "surrogateescape")


# ---- JSON lines


def _json_rows(name: str, file: Any) -> Iterator[RawRow | RefusedRow]:
    empty = True
    for found in blocks(file):
        empty = False
        if isinstance(found, Unread):
            yield refuse_line(name, found)
        else:
            yield from rows_of(name, found)
    if empty:
        yield RefusedRow(name, "the file is empty", "")


def refuse_line(name: str, line: Unread) -> RefusedRow:
    return RefusedRow(f"{name}:{line.number}", line.reason, _raw(line.line))


def rows_of(name: str, block: Block, places: Container[int] | None = None) -> Iterator[RawRow | RefusedRow]:
    """The block's lines as rows; with `places` only those of these places, counted from 0."""
    for place, (number, line) in enumerate(block.lines()):
        if places is not None and place not in places:
            continue
        where = f"{name}:{number}"
        try:
            yield RawRow(where, _parse(line.removeprefix(BOM) if number == 1 else line), line)
        except UnfitRow as unscorable:
            yield RefusedRow(where, str(unscorable), _raw(line))


def _parse(line: bytes) -> dict[str, Any]:
    """The object that the line holds; raises `UnfitRow`."""
    if not line.strip():
        raise UnfitRow("the line is empty; expected one object on each line")
    if (nul := line.find(b"\0")) >= 0:
        raise UnfitRow(f"a NUL character at byte offset {nul}")
    try:
        values = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise UnfitRow(f"not UTF-8: byte 0x{line[error.start]:02x} at byte offset {error.start}") from error
    except json.JSONDecodeError as error:
        raise UnfitRow(f"invalid JSON at column {error.colno}: {error_message(ValueError(error.msg))}") from error
    except RecursionError as error:
        raise UnfitRow(TOO_DEEP) from error
    if not isinstance(values, dict):
        raise UnfitRow(f"the line is of type {type_name(values)}; expected one object on each line")
    if b"\\u" in line or line.count(b"{") + line.count(b"[") > MAX_DEPTH:  # nothing else can need a closer look
        check(values)
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise UnfitRow(f"key {short_repr(twice)} stands twice in one object")
    return values


def _int(text: str) -> int:
    """64 bits are what parquet, orjson and a database column hold; a longer number would come back changed."""
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
        raise UnfitRow(f"the whole number {short_repr(text, 30)} does not fit 64 bits; write it as text would")
    return number


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnfitRow(f"the number {short_repr(text, 30)} is too large; write it as text")
    return number


def _constant(text: str) -> float:
    raise UnfitRow(f"{text} is no JSON number; use null")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=_constant)

# ---- parquet


def _parquet_rows(name: str, file: Any) -> Iterator[RawRow | RefusedRow]:
    for found in batches(name, file):
        yield from (found,) if isinstance(found, RefusedRow) else found.rows(name)


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a parquet file, as columns (`pyarrow.RecordBatch`)."""

    first: int  # number of its first row, from 1
    columns: Any

    def rows(self, name: str, places: Collection[int] | None = None) -> Iterator[RawRow | RefusedRow]:
        """All rows; with `places` only those of these places, counted from 0."""
        chosen = range(self.columns.num_rows) if places is None else sorted(places)
        columns = self.columns if places is None else self.columns.take(chosen)
        for place, values in zip(chosen, _python_rows(columns), strict=True):
            yield _checked(f"{name}:{self.first + place}", values)


def batches(name: str, file: Any, size: int = _BATCH_ROWS) -> Iterator[RowBatch | RefusedRow]:
    """The file's rows in order, and at last why there are no more, where it is damaged."""
    import pyarrow as pa  # noqa: PLC0415  half a second that JSON does not need
    import pyarrow.parquet as pq  # noqa: PLC0415

    row = 0
    try:
        source = pq.ParquetFile(file)
        promised, size = source.metadata.num_rows, _fitting(source.metadata, size)
        if problem := _table_problem(source.schema_arrow.names, promised):
            yield RefusedRow(name, problem, "")
            return
        for group in range(source.num_row_groups):  # one at a time: a batch may not reach into a broken neighbour
            for batch in source.iter_batches(size, row_groups=[group], use_threads=False):
                yield RowBatch(row + 1, batch)
                row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a damaged column name
        where = f"{name}:{row + 1}" if row else name
        yield RefusedRow(
            where, f"the parquet file is cut short or damaged, no row from here on: {error_message(error)[:200]}", ""
        )
        return
    if row < promised:
        yield RefusedRow(f"{name}:{row + 1}", f"the parquet file promises {promised:,} rows and holds {row:,}", "")


def _fitting(metadata: Any, size: int) -> int:
    """Rows of a batch: fewer than `size` where rows are long, so that a batch stays bounded."""
    total = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    return max(min(size, _BATCH_BYTES * metadata.num_rows // max(total, 1)), 1)


def _table_problem(columns: list[str], rows: int) -> str | None:
    if rows == 0:
        return "the file is empty"
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        return f"column {short_repr(twice[0])} stands twice"
    return None


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


def _checked(where: str, values: dict[str, Any] | str) -> RawRow | RefusedRow:
    if isinstance(values, str):
        return RefusedRow(where, values, "")
    found = RawRow(where, values, None)
    try:
        check(values)
    except UnfitRow as unscorable:
        return found.refused(str(unscorable))
    return found
