"""Files to raw rows, one at a time: JSON lines (plain or gzip) and parquet. Nothing here knows what a prompt is.

Whatever a file holds, reading it raises nothing: a row that cannot be used comes out as `Refused`, with its place,
the reason and the whole of it.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from launcher.data.plain import MAX_DEPTH, MAX_ROW_BYTES, TOO_DEEP, Unfit, check, type_name
from launcher.problems import shown
from launcher.spec.data import Refused

MAX_KEPT_BYTES = 64 * 2**20
"""A still longer line is not held in memory either; it stays in its file only."""
ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".ndjson.gz", ".parquet")

_CHUNK_BYTES = 2**16
_BATCH_ROWS = 1024
_BOM = b"\xef\xbb\xbf"


class Found(NamedTuple):
    """One row as it stands in its file."""

    where: str  # file:line, or file:row for parquet; both count from 1
    values: dict[str, Any]
    line: bytes | None  # without its newline; parquet has no lines

    def refused(self, reason: str) -> Refused:
        """The row set aside. A parquet row is written as JSON: its own bytes lie spread over the columns."""
        raw = json.dumps(self.values, default=repr) if self.line is None else _raw(self.line)
        return Refused(self.where, reason, raw)


class _Bytes(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def ending_problem(name: str) -> str | None:
    """Why a file of this name is not read, or None."""
    if name.lower().endswith(ENDINGS):
        return None
    return f"the ending of {shown(name)} is not known; {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} would do"


def read_rows(name: str) -> Iterator[Found | Refused]:
    """Every row of the file once, in its order, good or refused."""
    if reason := ending_problem(name):
        yield Refused(name, reason, "")
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
            head = file.peek(4)
        except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the name
            yield Refused(name, f"cannot be read: {_said(error)}", "")
            return
        if not head:
            yield Refused(name, "the file is empty", "")
        elif name.lower().endswith(".parquet") or head.startswith(b"PAR1"):
            yield from _parquet_rows(name, file)
        elif head.startswith(b"\x1f\x8b"):
            yield from _json_rows(name, stack.enter_context(gzip.GzipFile(fileobj=file)))
        else:
            yield from _json_rows(name, file)


def _said(error: Exception) -> str:
    """What an error says, as one line of ours."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip() or type(error).__name__
    line = text.splitlines()[0].rstrip(".")[:200]
    return line[0].lower() + line[1:] if line[1:2].islower() else line


def _raw(line: bytes) -> str:
    """The line as text that can be turned back into the same bytes, whatever they are."""
    return line.decode("utf-8", "surrogateescape")


# ---- JSON lines


class _Line:
    """A line that comes in piece by piece."""

    def __init__(self) -> None:
        self.size = 0
        self.held = bytearray()

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= MAX_KEPT_BYTES:
            self.held += piece
        else:
            self.held.clear()

    def take(self) -> tuple[bytes, str]:
        """The line, what is wrong with its size ('' when nothing is), and a fresh start."""
        line, size = bytes(self.held), self.size
        self.held.clear()
        self.size = 0
        if size <= MAX_ROW_BYTES:
            return line, ""
        kept = "" if size <= MAX_KEPT_BYTES else " (too long to set aside: it stays in the file only)"
        return line, f"the line has {size:,} bytes; at most {MAX_ROW_BYTES:,} would do{kept}"


def _lines(file: _Bytes) -> Iterator[tuple[bytes, str]]:
    """Each line without its newline, and why it must not be parsed ('' when it may).

    Reading by chunks and not by `readline` keeps the beginning of a line in which a gzip file breaks off.
    """
    line = _Line()
    while True:
        try:
            chunk = file.read1(_CHUNK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            yield line.take()[0], f"the file breaks off in this line: {_said(error)}"
            return
        if not chunk:
            break
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line.add(piece)
            yield line.take()
        line.add(rest)
    if line.size:
        yield line.take()


def _json_rows(name: str, file: _Bytes) -> Iterator[Found | Refused]:
    number = 0
    for number, (line, reason) in enumerate(_lines(file), start=1):
        where = f"{name}:{number}"
        if reason:
            yield Refused(where, reason, _raw(line))
            continue
        try:
            values = _parse(line.removeprefix(_BOM) if number == 1 else line)
        except Unfit as unfit:
            yield Refused(where, str(unfit), _raw(line))
        else:
            yield Found(where, values, line)
    if not number:
        yield Refused(name, "the file is empty", "")


def _parse(line: bytes) -> dict[str, Any]:
    """The object that the line holds; raises `Unfit`."""
    if not line.strip():
        raise Unfit("the line is empty; one object on each line would do")
    if (nul := line.find(b"\0")) >= 0:
        raise Unfit(f"a NUL character at byte offset {nul}")
    try:
        values = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8: byte 0x{line[error.start]:02x} at byte offset {error.start}") from error
    except json.JSONDecodeError as error:
        raise Unfit(f"invalid JSON at column {error.colno}: {_said(ValueError(error.msg))}") from error
    except RecursionError as error:
        raise Unfit(TOO_DEEP) from error
    if not isinstance(values, dict):
        raise Unfit(f"the line is of type {type_name(values)}; one object on each line would do")
    if b"\\u" in line or line.count(b"{") + line.count(b"[") > MAX_DEPTH:  # nothing else can need a closer look
        check(values)
    return values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unfit(f"key {shown(twice)} stands twice in one object")
    return values


def _int(text: str) -> int:
    """64 bits are what parquet, orjson and a database column hold; a longer number would come back changed."""
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
        raise Unfit(f"the whole number {shown(text, 30)} does not fit 64 bits; as text it would")
    return number


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Unfit(f"the number {shown(text, 30)} is too large; as text it would do")
    return number


def _constant(text: str) -> float:
    raise Unfit(f"{text} is no JSON number; null would do")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=_constant)

# ---- parquet


def _parquet_rows(name: str, file: Any) -> Iterator[Found | Refused]:
    import pyarrow as pa  # noqa: PLC0415  half a second that JSON does not need
    import pyarrow.parquet as pq  # noqa: PLC0415

    row = 0
    try:
        source = pq.ParquetFile(file)
        promised = source.metadata.num_rows
        if problem := _table_problem(source.schema_arrow.names, promised):
            yield Refused(name, problem, "")
            return
        for group in range(source.num_row_groups):  # one at a time: a batch may not reach into a broken neighbour
            for batch in source.iter_batches(_BATCH_ROWS, row_groups=[group]):
                for values in _python_rows(batch):
                    row += 1
                    yield _checked(f"{name}:{row}", values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: a damaged column name
        where = f"{name}:{row + 1}" if row else name
        yield Refused(where, f"the parquet file is cut short or damaged, no row from here on: {_said(error)}", "")
        return
    if row < promised:
        yield Refused(f"{name}:{row + 1}", f"the parquet file promises {promised:,} rows and holds {row:,}", "")


def _table_problem(columns: list[str], rows: int) -> str | None:
    if rows == 0:
        return "the file is empty"
    if twice := sorted({column for column in columns if columns.count(column) > 1}):
        return f"column {shown(twice[0])} stands twice"
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
                yield f"cannot be turned into plain values: {_said(error)}"
            else:
                yield rows[0]


def _checked(where: str, values: dict[str, Any] | str) -> Found | Refused:
    if isinstance(values, str):
        return Refused(where, values, "")
    found = Found(where, values, None)
    try:
        check(values)
    except Unfit as unfit:
        return found.refused(str(unfit))
    return found
