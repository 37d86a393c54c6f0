"""Records of CSV and elements of a JSON array: rows that may span several lines, read one by one.

Python's `csv` and `json` find where a row ends. Where they cannot, reading ends there, and the reason says so.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from launcher.core.problems import error_message, short_repr
from launcher.data.rows import (
    BOM,
    MAX_ROW_BYTES,
    TOO_DEEP,
    Found,
    RawRow,
    UnfitRow,
    check_bytes,
    parse_row,
    reversible_text,
)
from launcher.spec.data import RefusedRow

MAX_ARRAY_BYTES = 256 * 2**20
"""Most bytes of a JSON array, which is read into memory as a whole."""
BREAKS = (OSError, EOFError, zlib.error)
"""Exceptions that reading a damaged or truncated file raises."""


def ended(where: str, reason: str, raw: bytes = b"") -> RefusedRow:
    """The refused row that ends the reading of a file."""
    return RefusedRow(where, reason, reversible_text(raw), ends_file=True)


# ---- CSV

csv.field_size_limit(MAX_ROW_BYTES)  # Python's own is 128 KiB
_MAX_COLUMNS = 4096
_OPEN_QUOTE = "a quote that begins in this row is never closed; close it, or double each quote in a text"
_TOO_LONG = (
    f"the row has more than {MAX_ROW_BYTES:,} bytes (it stays in the file only): a quote in it may be open; no row"
    " after it is read"
)


class _TooLongError(Exception):
    """A record is so long that its end is not looked for."""


def csv_rows(name: str, file: Any, separator: str) -> Iterator[Found]:
    """The records after the header, each as the texts of its columns. Empty fields count as missing; blank lines and
    columns without a name are skipped."""
    record, header, rows = bytearray(), list[str](), 0
    reader = csv.reader(_lines(file, record), delimiter=separator, strict=True)
    while True:
        where, ends_file = f"{name}:{reader.line_num + 1}", True
        record.clear()
        try:
            fields = next(reader, None)
            if fields is None:
                break
            check_bytes(record)
            if not header:
                header = _column_names(fields) if record.strip() else []
            elif record.strip():
                yield RawRow(where, _csv_values(header, fields), bytes(record.removesuffix(b"\n")))
                rows += 1
            continue
        except BREAKS as error:
            reason = f"the file breaks off behind this line: {error_message(error)}"
        except _TooLongError:
            reason = _TOO_LONG
        except csv.Error as error:
            is_open = str(error) == "unexpected end of data"
            reason = _OPEN_QUOTE if is_open else f"{error}; put the text in quotes and double each quote in it"
            ends_file = is_open or not header
        except UnfitRow as unfit:
            reason, ends_file = str(unfit), not header  # without a header the columns are unknown
        yield RefusedRow(where, reason, reversible_text(record.removesuffix(b"\n")), ends_file=ends_file)
        if ends_file:
            return
        rows += 1
    if not rows:
        yield ended(name, "the file has a header and no rows" if header else "the file is empty")


def _lines(file: Any, record: bytearray) -> Iterator[str]:
    """The lines for `csv.reader`, which takes as many as a record has; `record` collects their bytes."""
    for index, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 1), b"")):
        line = line if index else line.removeprefix(BOM)
        record += line
        if len(record) > MAX_ROW_BYTES + line.endswith(b"\n"):
            raise _TooLongError
        yield line.decode("utf-8", "surrogateescape")


def _column_names(fields: list[str]) -> list[str]:
    if len(fields) > _MAX_COLUMNS:
        raise UnfitRow(f"the header has {len(fields):,} columns; expected at most {_MAX_COLUMNS:,}")
    names = [field.strip() for field in fields]
    if duplicate := next((column for column, count in Counter(names).items() if column and count > 1), None):
        raise UnfitRow(f"column {short_repr(duplicate)} stands twice in the header; rename one")
    return names


def _csv_values(header: list[str], fields: list[str]) -> dict[str, Any]:
    if len(fields) != len(header):
        fix = "put texts that hold a separator in quotes"
        raise UnfitRow(f"the row has {len(fields):,} fields and the header {len(header):,}; {fix}")
    return {column: field or None for column, field in zip(header, fields, strict=True) if column}


# ---- a JSON array

_OPENING = re.compile(r"\s*\[\s*")
_SEPARATOR = re.compile(r"\s*(?:,\s*|(?=\]))")
_END_FINDER = json.JSONDecoder(parse_int=str, parse_float=str)
"""Only finds the end of an element; `parse_row` parses it."""


def array_rows(name: str, file: Any) -> Iterator[Found]:
    """The elements of the array that an open file begins with, each with its line and its number, which counts from 1.

    After an element that is not JSON the next one cannot be found, so reading ends there.
    """
    try:
        content = file.read(MAX_ARRAY_BYTES + 1)
    except BREAKS as error:
        yield ended(name, f"the file breaks off: {error_message(error)}")
        return
    if len(content) > MAX_ARRAY_BYTES:
        print_command = "gzip -dc" if name.endswith(".gz") else "cat"
        fix = f"{print_command} {shlex.quote(name)} | jq -c '.[]' > {shlex.quote(name.removesuffix('.gz'))}l"
        yield ended(name, f"a JSON array may have at most {MAX_ARRAY_BYTES:,} bytes; make JSON lines of it: {fix}")
        return
    text = content.decode("utf-8-sig", "surrogateescape")
    del content  # the text is enough from here on
    opening = _OPENING.match(text)
    position, number = opening.end() if opening else 0, 0
    line = 1 + text.count("\n", 0, position)
    while text[position : position + 1] != "]":
        number += 1
        where = f"{name}:{line} (element {number})"
        try:
            _, end = _END_FINDER.raw_decode(text, position)
        except RecursionError:
            yield ended(where, f"{TOO_DEEP}; no element after it is read")
            return
        except json.JSONDecodeError as error:
            got = f"{error_message(ValueError(error.msg))} at its character {error.pos - position + 1}"
            reason = f"the element is no JSON, or the file breaks off in it: {got}"
            yield ended(where, f"{reason}; no element after it is read")
            return
        yield parse_row(where, text[position:end].encode("utf-8", "surrogateescape"), "element", "an object")
        separator = _SEPARATOR.match(text, end)
        if not separator:
            yield ended(where, "neither a comma nor ] follows this element, or the file breaks off behind it")
            return
        line += text.count("\n", position, separator.end())
        position = separator.end()
    if text[position + 1 :].strip():
        yield ended(f"{name}:{line}", "text after the end of the array; expected one array")
    elif not number:
        yield ended(name, "the array is empty")
