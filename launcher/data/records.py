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
from typing import Any

from launcher.core.problems import error_message, short_repr
from launcher.data.rows import (
    BOM,
    MAX_ROW_BYTES,
    TOO_DEEP,
    RawRow,
    UnfitRow,
    check_bytes,
    parse_object,
    reversible_text,
)
from launcher.spec.data import RefusedRow

MAX_ARRAY_BYTES = 256 * 2**20
"""Most bytes of a JSON array, which is read into memory as a whole."""
BREAKS = (OSError, EOFError, zlib.error)
"""Exceptions that reading a damaged or truncated file raises."""

Found = RawRow | RefusedRow


def ended(where: str, reason: str, raw: bytes = b"") -> RefusedRow:
    """The refused row that ends the reading of a file."""
    return RefusedRow(where, reason, reversible_text(raw), ends_file=True)


# ---- CSV

csv.field_size_limit(MAX_ROW_BYTES)  # Python's own is 128 KiB
_MAX_COLUMNS = 4096
_OPEN_QUOTE = "a quote that begins in this row is never closed; close it, or double each quote in a text"


class _Unrecoverable(Exception):
    """No end of a record can be found after this line, so reading ends here."""


class _RecordLines(Iterator[str]):
    """The lines of a CSV file for `csv.reader`, which takes as many as a record has; `taken` collects them."""

    def __init__(self, file: Any) -> None:
        self.file, self.number, self.taken = file, 0, bytearray()

    @property
    def raw(self) -> bytes:
        """The bytes of the record in its file, without the last newline."""
        return bytes(self.taken.removesuffix(b"\n"))

    def begin(self) -> int:
        """Begin a record; returns the number of its first line, from 1."""
        self.taken = bytearray()
        return self.number + 1

    def __next__(self) -> str:
        try:
            line = self.file.readline(MAX_ROW_BYTES + 1)
        except BREAKS as error:
            raise _Unrecoverable(f"the file breaks off behind this line: {error_message(error)}") from error
        if not line:
            raise StopIteration
        self.number += 1
        line = line.removeprefix(BOM) if self.number == 1 else line
        self.taken += line
        if len(self.taken) > MAX_ROW_BYTES + line.endswith(b"\n"):
            more = f"the row has more than {MAX_ROW_BYTES:,} bytes (it stays in the file only)"
            raise _Unrecoverable(f"{more}: a quote in it may be open; no row after it is read")
        return line.decode("utf-8", "surrogateescape")


def csv_rows(name: str, file: Any, separator: str) -> Iterator[Found]:
    """The records after the header, each as the texts of its columns. Empty fields count as missing; blank lines and
    columns without a name are skipped."""
    lines, header, rows = _RecordLines(file), list[str](), 0
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        where = f"{name}:{lines.begin()}"
        try:
            fields = _read_record(reader, lines)
            if not header:
                header = _column_names(fields)
            elif fields:
                yield RawRow(where, _csv_values(header, fields), lines.raw)
                rows += 1
        except StopIteration:
            break
        except _Unrecoverable as end:
            yield ended(where, str(end), lines.raw)
            return
        except UnfitRow as unfit:
            yield RefusedRow(where, str(unfit), reversible_text(lines.raw), ends_file=not header)
            rows += 1
            if not header:
                return  # without a header the columns are unknown
    if not rows:
        yield ended(name, "the file has a header and no rows" if header else "the file is empty")


def _read_record(reader: Iterator[list[str]], lines: _RecordLines) -> list[str]:
    """The next record's fields, none if it is blank. Raises `UnfitRow`, `_Unrecoverable`, `StopIteration`."""
    try:
        fields = next(reader)
    except csv.Error as error:
        if str(error) == "unexpected end of data":
            raise _Unrecoverable(_OPEN_QUOTE) from error
        raise UnfitRow(f"{error}; put the text in quotes and double each quote in it") from error
    check_bytes(lines.raw)
    return fields if lines.raw.strip() else []


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
"""Only finds the end of an element; `parse_object` parses it."""


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
        except (json.JSONDecodeError, RecursionError) as error:
            yield ended(where, f"{_describe_bad_element(error, position)}; no element after it is read")
            return
        yield _element(where, text[position:end].encode("utf-8", "surrogateescape"))
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


def _describe_bad_element(error: json.JSONDecodeError | RecursionError, start: int) -> str:
    if isinstance(error, RecursionError):
        return TOO_DEEP
    got = f"{error_message(ValueError(error.msg))} at its character {error.pos - start + 1}"
    return f"the element is no JSON, or the file breaks off in it: {got}"


def _element(where: str, raw: bytes) -> Found:
    try:
        return RawRow(where, parse_object(raw, "element", "an object"), raw)
    except UnfitRow as unfit:
        return RefusedRow(where, str(unfit), reversible_text(raw))
