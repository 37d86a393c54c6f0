"""Records of CSV and elements of a JSON array: rows that may go over several lines, read one by one.

Python's `csv` and `json` find where a row ends. Where they cannot, reading ends there, and the reason says so.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from launcher.core.problems import error_message, short_repr
from launcher.data.encodings import to_utf8, wide_encoding
from launcher.data.rows import (
    BOM,
    MAX_ROW_BYTES,
    TOO_DEEP,
    RawRow,
    UnfitRow,
    check_bytes,
    parse_object,
    reversible_text,
    too_long,
)
from launcher.spec.data import RefusedRow

PIECE_BYTES = 2**20
"""Bytes of an array that are read at a time."""
BREAKS = (OSError, EOFError, zlib.error)
"""What reading a damaged or cut file raises."""

Found = RawRow | RefusedRow


def ended(where: str, reason: str, raw: bytes = b"") -> RefusedRow:
    """What ends the reading of a file."""
    return RefusedRow(where, reason, reversible_text(raw), ends_file=True)


# ---- CSV

csv.field_size_limit(MAX_ROW_BYTES)  # Python's own is 128 KiB
_MAX_COLUMNS = 4096
_OPEN_QUOTE = "a quote that begins in this row is never closed; close it, or double each quote in a text"


class _FileEnds(Exception):
    """A line after which the records of a file cannot be told apart."""


class _RecordLines(Iterator[str]):
    """The lines of a CSV file for `csv.reader`, which takes as many as a record has; `taken` holds those."""

    def __init__(self, lines: Iterator[bytes | RefusedRow], number: int) -> None:
        self.lines, self.number, self.taken, self.size = lines, number, list[bytes](), 0

    @property
    def raw(self) -> bytes:
        """The record as it stands in its file."""
        return b"\n".join(self.taken)

    def begin(self) -> int:
        """The number of the line with which the next record begins."""
        self.taken, self.size = [], 0
        return self.number + 1

    def __next__(self) -> str:
        line = next(self.lines)
        self.number += 1
        if isinstance(line, RefusedRow):
            raise _FileEnds(line.reason if line.ends_file else f"{line.reason}; no row after it is read")
        self.taken.append(line)
        self.size += len(line) + 1
        if self.size > MAX_ROW_BYTES + 1:
            raise _FileEnds(f"{too_long('row', self.size - 1)}: a quote in it may be open; no row after it is read")
        return line.decode("utf-8", "surrogateescape") + "\n"


def csv_rows(name: str, source: Iterator[bytes | RefusedRow], tabs: bool) -> Iterator[Found]:
    """The records after the header, each as the texts of its columns; an empty field counts as missing.

    Columns are separated by commas (`tabs`: by tabs); where the header has none, by semicolons or tabs if it has
    those. Blank lines are no records, columns without a name are left out.
    """
    first = _first_line(name, source)
    if not isinstance(first, tuple):
        yield from [first] if first else []
        return
    blank, start = first
    usual = "\t" if tabs else ","
    sign = usual if usual.encode() in start else next((sign for sign in ";\t" if sign.encode() in start), usual)
    lines = _RecordLines(chain([start], source), blank)
    reader = csv.reader(lines, delimiter=sign, strict=True)
    header, rows = list[str](), 0
    while True:
        where = f"{name}:{lines.begin()}"
        try:
            fields = _record(reader, lines)
            if not header or not fields:
                header = header or _column_names(fields)
                continue
            yield RawRow(where, _csv_values(header, fields), lines.raw, only_texts=True)
        except StopIteration:
            break
        except _FileEnds as ends:
            yield ended(where, str(ends), lines.raw)
            return
        except UnfitRow as unfit:
            yield RefusedRow(where, str(unfit), reversible_text(lines.raw), ends_file=not header)
            if not header:
                return  # the columns are unknown
        rows += 1
    if header and not rows:
        yield ended(name, "the file has a header and no rows")


def _first_line(name: str, source: Iterator[bytes | RefusedRow]) -> tuple[int, bytes] | RefusedRow | None:
    """How many blank lines come first, and the line after them, without its mark; or why there is none."""
    for blank, line in enumerate(source):
        if isinstance(line, RefusedRow):
            return ended(line.where, line.reason)
        if line.strip():
            encoding = wide_encoding(line[:64])
            unread = encoding and ended(name, f"the file is {encoding}; {to_utf8(name, encoding)}")
            return unread or (blank, line if blank else line.removeprefix(BOM))
    return None


def _record(reader: Iterator[list[str]], lines: _RecordLines) -> list[str]:
    """The fields of the next record, none where it is blank. Raises `UnfitRow`, `_FileEnds` and `StopIteration`."""
    try:
        fields = next(reader)
    except csv.Error as error:
        if str(error) == "unexpected end of data":
            raise _FileEnds(_OPEN_QUOTE) from error
        raise UnfitRow(f"{error}; put the text in quotes and double each quote in it") from error
    check_bytes(lines.raw)
    return fields if lines.raw.strip() else []


def _column_names(fields: list[str]) -> list[str]:
    if len(fields) > _MAX_COLUMNS:
        raise UnfitRow(f"the header has {len(fields):,} columns; expected at most {_MAX_COLUMNS:,}")
    names = [field.strip() for field in fields]
    if twice := next((column for column, count in Counter(names).items() if column and count > 1), None):
        raise UnfitRow(f"column {short_repr(twice)} stands twice in the header; rename one")
    return names


def _csv_values(header: list[str], fields: list[str]) -> dict[str, Any]:
    if len(fields) != len(header):
        fix = "put texts that hold a separator in quotes"
        raise UnfitRow(f"the row has {len(fields):,} fields and the header {len(header):,}; {fix}")
    return {column: field or None for column, field in zip(header, fields, strict=True) if column}


# ---- a JSON array

_BLANKS = re.compile(r"[ \t\r\n]*")
_SKIPPING = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds the end of an element; `parse_object` reads it."""


class _ArrayText:
    """The text of a file, read in pieces; what stands before `at` has been taken."""

    def __init__(self, file: Any) -> None:
        self.file, self.text, self.at, self.line, self.broken = file, "", 0, 1, ""
        self.decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        try:
            piece = self.file.read1(PIECE_BYTES)
        except BREAKS as error:
            piece, self.broken = b"", f": {error_message(error)}"
        self.text, self.at = self.text[self.at :] + self.decode(piece, final=not piece), 0
        return bool(piece)

    def take(self, end: int) -> str:
        taken = self.text[self.at : end]
        self.at = end
        self.line += taken.count("\n")
        return taken

    def sign(self) -> str:
        """The sign that comes next after blanks; empty at the end of the file."""
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.take(blanks.end() if blanks else self.at)
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def element(self) -> str:
        """The text of the next element. Raises `UnfitRow` where its end cannot be found."""
        while True:
            try:
                _, end = _SKIPPING.raw_decode(self.text, self.at)
                if end < len(self.text) or not self.more():
                    return self.take(end)
            except RecursionError as error:
                raise UnfitRow(TOO_DEEP) from error
            except json.JSONDecodeError as error:
                size, place = len(self.text) - self.at, error.pos - self.at + 1
                if size > MAX_ROW_BYTES:
                    raise UnfitRow(f"the element is no JSON, or has more than {MAX_ROW_BYTES:,} bytes") from error
                if not self.more():
                    broken = self.broken or f": {error.msg[:1].lower()}{error.msg[1:]} at its character {place}"
                    raise UnfitRow(f"the element is no JSON, or the file breaks off in it{broken}") from error


def array_rows(name: str, file: Any) -> Iterator[Found]:
    """The elements of the array in an open file, each with its line and its number, which counts from 1.

    Behind an element that is no JSON the next one cannot be found, so reading ends there.
    """
    source, number = _ArrayText(file), 0
    source.sign()
    source.take(source.at + 1)  # the bracket
    sign = source.sign()
    while sign not in ("]", ""):
        number += 1
        where = f"{name}:{source.line} (element {number})"
        try:
            raw = source.element().encode("utf-8", "surrogateescape")
        except UnfitRow as unfit:
            yield ended(where, f"{unfit}; no element after it is read")
            return
        yield _element(where, raw)
        sign = source.sign()
        if sign == ",":
            source.take(source.at + 1)
            sign = source.sign() or ","
        elif sign not in ("]", ""):
            yield ended(f"{name}:{source.line}", f"{short_repr(sign)} follows element {number}; expected a comma")
            return
    source.take(source.at + 1)
    after = source.sign()
    where = f"{name}:{source.line}"
    if not sign or source.broken:
        yield ended(where, f"the file breaks off {'after' if sign else 'in'} the array{source.broken}")
    elif after:
        yield ended(where, "text after the end of the array; expected one array")
    elif not number:
        yield ended(name, "the array is empty")


def _element(where: str, raw: bytes) -> Found:
    try:
        return RawRow(where, parse_object(raw, "element", "an object"), raw)
    except UnfitRow as unfit:
        return RefusedRow(where, str(unfit), reversible_text(raw))
