"""Records of CSV and TSV (RFC 4180) and elements of a JSON array (RFC 8259), one at a time and in bounded memory.

Each byte is looked at once, whatever the file holds; as in JSON lines, a row that cannot be used comes out as
`RefusedRow` with its place, the reason and the whole of it.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from launcher.core.problems import error_message, short_repr
from launcher.data.rows import BOM, MAX_KEPT_BYTES, MAX_ROW_BYTES, RawRow, UnfitRow, parse_object, reversible_text
from launcher.spec.data import RefusedRow

PIECE_BYTES = 2**20
"""Bytes of an array that are read at a time."""

Line = tuple[int, bytes | RefusedRow]
"""Number and text of a line, or why it is refused."""


def _check_size(what: str, size: int) -> None:
    if size <= MAX_ROW_BYTES:
        return
    reason = f"the {what} has {size:,} bytes; expected at most {MAX_ROW_BYTES:,}"
    raise UnfitRow(f"{reason} (too long to set aside: it stays in the file only)" if size > MAX_KEPT_BYTES else reason)


def _ended(where: str, reason: str, raw: bytes, size: int) -> RefusedRow:
    """What ends the reading of a file, with the bytes that were being read."""
    if size > MAX_KEPT_BYTES:
        raw, reason = b"", f"{reason} ({size:,} bytes, too long to set aside: they stay in the file only)"
    return RefusedRow(where, reason, reversible_text(raw), ends_file=True)


# ---- CSV

_QUOTED = re.compile(rb'[^"]*+(?:""[^"]*+)*+')
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MAX_COLUMNS = 4096


class _Record:
    """One record, line by line: a quoted field may hold line breaks."""

    def __init__(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        self.plain = re.compile(rb'[^"%s]*+' % re.escape(delimiter))
        self.first = 0
        """Number of the line on which it begins; 0 where none is open."""

    def add(self, number: int, line: bytes) -> bool:
        """Take the next line; True where the record ends with it."""
        if not self.first:
            self.first, self.raw, self.size = number, bytearray(), -1
            self.fields, self.open, self.quoted, self.wrong = list[bytes](), bytearray(), False, ""
        self.last = number
        self.size += 1 + len(line)
        if self.size > MAX_ROW_BYTES:  # it will be refused, and only its end is looked for
            self.fields, self.open = [], bytearray()
        if self.size > MAX_KEPT_BYTES:
            self.raw.clear()
        else:
            self.raw += b"\n" * bool(self.raw) + line
        self._split(line[:-1] if line.endswith(b"\r") else line, line)
        return not self.quoted

    def _split(self, line: bytes, whole: bytes) -> None:
        at, kept = 0, self.size <= MAX_ROW_BYTES
        if not self.quoted and b'"' not in line:
            self.fields = line.split(self.delimiter) if kept else []
            return
        if self.quoted and kept:
            self.open += b"\n"
        while True:
            if self.quoted:
                text = _QUOTED.match(whole, at)
                assert text
                if kept:
                    self.open += text[0]
                at = text.end()
                if at == len(whole):
                    return  # it goes on in the next line
                if kept:
                    self.fields.append(bytes(self.open).replace(b'""', b'"'))
                self.quoted, self.open, at = False, bytearray(), at + 1
                if at < len(line) and not line.startswith(self.delimiter, at):
                    got = f"text after the closing quote of field {len(self.fields)}"
                    got += f" in line {self.last:,}" if self.last != self.first else ""
                    at = self._go_on(line, at, f"{got}; double each quote in a text")
            elif line.startswith(b'"', at):
                self.quoted, at = True, at + 1
                continue
            else:
                text = self.plain.match(line, at)
                assert text
                if kept:
                    self.fields.append(text[0])
                at = text.end()
                if line.startswith(b'"', at):
                    got = f"a quote inside field {len(self.fields)}, which begins without one"
                    at = self._go_on(line, at, f"{got}; put the field in quotes and double each quote in it")
            if at >= len(line):
                return
            at += len(self.delimiter)

    def _go_on(self, line: bytes, at: int, wrong: str) -> int:
        """The end of a field that is wrong from `at` on: a quote that a later field opens still holds line breaks."""
        self.wrong = self.wrong or wrong
        end = line.find(self.delimiter, at)
        return end if end >= 0 else len(line)

    def close(self) -> bytes:
        """The record as it stands in its file."""
        self.first = 0
        return bytes(self.raw)

    def texts(self, raw: bytes) -> list[str]:
        """Its fields. Raises `UnfitRow`."""
        _check_size("row", self.size)
        if (nul := raw.find(b"\0")) >= 0:
            raise UnfitRow(f"a NUL character at byte offset {nul}")
        if self.wrong:
            raise UnfitRow(self.wrong)
        try:
            raw.decode()
            return [field.decode() for field in self.fields]
        except UnicodeDecodeError as error:
            raise UnfitRow(f"not UTF-8: byte 0x{raw[error.start]:02x} at byte offset {error.start}") from error


def csv_rows(name: str, lines: Iterable[Line], tabs: bool) -> Iterator[RawRow | RefusedRow]:
    """The records after the header, each as the texts of its columns; an empty field counts as missing.

    Columns are separated by commas (`tabs`: by tabs); where the header has none, by semicolons or tabs if it has
    those. Blank lines are no records, columns without a name are left out.
    """
    record, header, rows = _Record(b"\t" if tabs else b","), list[str](), 0
    for number, text in lines:
        if isinstance(text, RefusedRow):
            if text.ends_file or not text.raw:
                yield _cut(name, record, text)
                return
            text = text.raw.encode("utf-8", "surrogateescape")  # too long, but a quote in it may open or close a text
        if number == 1:
            if text.startswith(_UTF16):
                yield RefusedRow(name, "the file is UTF-16; save it as UTF-8", "", ends_file=True)
                return
            text = text.removeprefix(BOM)
        if not record.first and not text.strip(b" \r"):
            continue
        if not header and not record.first and record.delimiter not in text:
            record = _Record(next((sign for sign in (b";", b"\t") if sign in text), record.delimiter))
        if not record.add(number, text):
            continue
        where, raw = f"{name}:{record.first}", record.close()
        try:
            fields = record.texts(raw)
            if not header:
                header = _header(fields)
                continue
            yield RawRow(where, _values(header, fields), raw, only_texts=True)
        except UnfitRow as unfit:
            yield RefusedRow(where, str(unfit), reversible_text(raw), ends_file=not header)
            if not header:
                return  # the columns are unknown
        rows += 1
    if record.first:
        reason = "a quote that begins in this row is never closed; close it, or double each quote in a text"
        yield _ended(f"{name}:{record.first}", reason, record.close(), record.size)
    elif header and not rows:
        yield RefusedRow(name, "the file has a header and no rows", "", ends_file=True)


def _cut(name: str, record: _Record, line: RefusedRow) -> RefusedRow:
    """The last row, where the file breaks off in this line, or where it is too long to look for quotes in it."""
    reason = line.reason if line.ends_file else f"{line.reason}; no row after it is read"
    if not record.first:
        return replace(line, reason=reason, ends_file=True)
    more = b"\n" + line.raw.encode("utf-8", "surrogateescape") if line.raw else b""
    return _ended(f"{name}:{record.first}", reason, record.close() + more, record.size + len(more))


def _header(fields: list[str]) -> list[str]:
    if len(fields) > _MAX_COLUMNS:
        raise UnfitRow(f"the header has {len(fields):,} columns; expected at most {_MAX_COLUMNS:,}")
    names = [field.strip() for field in fields]
    if twice := next((column for column, count in Counter(names).items() if column and count > 1), None):
        raise UnfitRow(f"column {short_repr(twice)} stands twice in the header; rename one")
    return names


def _values(header: list[str], fields: list[str]) -> dict[str, Any]:
    if len(fields) != len(header):
        fix = "put texts that hold a separator in quotes"
        raise UnfitRow(f"the row has {len(fields):,} fields and the header {len(header):,}; {fix}")
    return {column: field or None for column, field in zip(header, fields, strict=True) if column}


# ---- a JSON array

_BLANK = re.compile(rb"[ \t\r\n]*+")
_IN_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'"|[\[{]++|[\]}]++')


class _Elements:
    """Cuts an array into its elements: `feed` gives each with its line and size as soon as it has ended."""

    def __init__(self) -> None:
        self.line, self.closed = 1, False
        self._begin()

    def _begin(self) -> None:
        self.begun, self.depth, self.in_text = False, 0, False
        self.kept, self.size = bytearray(), 0

    def element(self) -> tuple[int, bytes, int]:
        """Line, bytes and size of the element that has been read; its bytes are empty where it is too long."""
        found = self.first if self.begun else self.line, bytes(self.kept).rstrip(), self.size
        self._begin()
        return found

    def _keep(self, data: bytes) -> None:
        self.line += data.count(b"\n")
        self.size += len(data)
        if self.size <= MAX_KEPT_BYTES:
            self.kept += data
        else:
            self.kept.clear()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, int]]:
        """The elements that end in `data`; what is left in `rest` comes before the next."""
        at = start = 0
        while at < len(data):
            if not self.begun:
                blank = _BLANK.match(data, start)
                assert blank
                self.line += blank[0].count(b"\n")
                at = start = blank.end()
                if at == len(data):
                    break
                self.begun, self.first = data[at] not in b",]", self.line
            if self.in_text:
                text = _IN_TEXT.match(data, at)
                assert text
                at = text.end()
                if data[at : at + 1] != b'"':
                    break  # it goes on, perhaps with the second half of an escape
                self.in_text, at = False, at + 1
            sign = (_INSIDE if self.depth else _OUTSIDE).search(data, at)
            if not sign:
                at = len(data)
                break
            at = sign.end()
            if sign[0] == b'"':
                self.in_text, self.begun = True, True
            elif sign[0][0] in b"[{":
                self.depth += len(sign[0])
            elif self.depth:
                closing = min(len(sign[0]), self.depth)
                at, self.depth = sign.start() + closing, self.depth - closing
            elif sign[0] in (b",", b"]"):
                self._keep(data[start : sign.start()])
                self.closed = sign[0] == b"]"
                if self.begun or not self.closed:
                    yield self.element()
                start = at
                if self.closed:
                    break
        self.rest = data[at:]
        self._keep(data[start:at])


def array_rows(name: str, file: Any) -> Iterator[RawRow | RefusedRow]:
    """The elements of the array in an open file, each with its line and its number, which counts from 1."""
    elements, number, rest, broken = _Elements(), 0, b"", ""
    opened = False
    while not elements.closed:
        piece, broken = _piece(file)
        if not piece:
            break
        if not opened:  # `open_rows` has seen the bracket
            before, _, piece = piece.partition(b"[")
            elements.line, opened = 1 + before.count(b"\n"), True
        for line, text, size in elements.feed(rest + piece):
            number += 1
            yield _element(f"{name}:{line} (element {number})", text, size)
        rest = elements.rest
    if not elements.closed:
        line, text, size = elements.element()
        reason = f"the file breaks off in this element{broken}; the array is not closed"
        yield _ended(f"{name}:{line} (element {number + 1})", reason, text + rest, size + len(rest))
        return
    while not rest.strip():
        rest, broken = _piece(file)
        if not rest:
            break
    where = f"{name}:{elements.line}"
    if broken:
        yield _ended(where, f"the file breaks off after the array{broken}", b"", 0)
    elif rest:
        yield _ended(where, "text after the end of the array; expected one array", b"", 0)
    elif not number:
        yield _ended(name, "the array is empty", b"", 0)


def _piece(file: Any) -> tuple[bytes, str]:
    """What comes next, and why there is no more, where the file is damaged."""
    try:
        return file.read1(PIECE_BYTES), ""
    except (OSError, EOFError, zlib.error) as error:
        return b"", f": {error_message(error)}"


def _element(where: str, text: bytes, size: int) -> RawRow | RefusedRow:
    try:
        _check_size("element", size)
        return RawRow(where, parse_object(text, "element", "an object"), text)
    except UnfitRow as unfit:
        return RefusedRow(where, str(unfit), reversible_text(text))
