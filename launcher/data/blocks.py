"""A file of lines in blocks of whole lines, so that a block may be read in columns or line by line."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from launcher.core.problems import error_message
from launcher.data.value_checks import MAX_ROW_BYTES

MAX_KEPT_BYTES = 64 * 2**20
"""Longer lines are not held in memory; they stay in their file only."""
BLOCK_BYTES = MAX_ROW_BYTES
"""Bytes read at a time. A block has at most twice as many, and no line that is too long."""
BOM = b"\xef\xbb\xbf"


class Bytes(Protocol):
    def readinto1(self, buffer: memoryview, /) -> int: ...


@dataclass
class Block:
    """Whole lines; only the file's last may lack its newline."""

    first: int  # number of its first line, from 1
    view: memoryview
    count: int | None = None
    """Number of its lines, if counted."""

    @property
    def data(self) -> bytes:
        return bytes(self.view)

    def counted(self) -> int:
        if self.count is None:
            data = self.data
            self.count = data.count(b"\n") + (not data.endswith(b"\n"))
        return self.count

    def lines(self) -> list[tuple[int, bytes]]:
        """Each line with its number, without its newline."""
        lines = self.data.split(b"\n")
        return list(enumerate(lines if lines[-1] else lines[:-1], start=self.first))

    def halves(self) -> tuple[Block, Block]:
        """The same lines in two blocks of about half the size."""
        data = self.data
        cut = data.find(b"\n", len(data) // 2) + 1
        cut = cut if 0 < cut < len(data) else data.rfind(b"\n", 0, len(data) - 1) + 1
        return Block(self.first, self.view[:cut]), Block(self.first + data.count(b"\n", 0, cut), self.view[cut:])


@dataclass(frozen=True)
class Unread:
    """A line that must not be parsed, and why."""

    number: int
    line: bytes
    reason: str


def blocks(file: Bytes) -> Iterator[Block | Unread]:
    """Every line of the file once, in order; the beginning of a line in which a gzip file breaks off, too.

    Memory stays bounded: a line too long to parse comes alone, one too long to keep comes without its bytes.
    """
    number, begun, more = 1, b"", True
    while more:
        buffer, filled, broken = _read(file, begun)
        more = filled == len(buffer)
        first = buffer.find(b"\n", len(begun), filled)
        if (filled if first < 0 else first) > MAX_ROW_BYTES:
            line, rest, broken, more = _long(file, buffer[:filled], number, broken, more)
            yield line
            number += 1
            buffer, filled = rest, len(rest)
        end = buffer.rfind(b"\n", 0, filled) + 1
        if not more and not broken:
            end = filled  # the file's last line needs no newline
        if end:
            block = Block(number, memoryview(buffer)[:end])
            yield block
            number += block.counted()
        begun = bytes(buffer[end:filled])
        if broken:
            yield Unread(number, begun, broken)
            return


def _read(file: Bytes, begun: bytes) -> tuple[bytearray, int, str]:
    """`begun` and what comes next, how much that is, and why there will be no more, where the file breaks off."""
    buffer, filled = bytearray(len(begun) + BLOCK_BYTES), len(begun)
    buffer[:filled] = begun
    view = memoryview(buffer)
    try:
        while filled < len(buffer) and (count := file.readinto1(view[filled:])):
            filled += count
    except (OSError, EOFError, zlib.error) as error:
        return buffer, filled, f"the file breaks off in this line: {error_message(error)}"
    return buffer, filled, ""


def _long(file: Bytes, begun: bytearray, number: int, broken: str, more: bool) -> tuple[Unread, bytearray, str, bool]:
    """The line that `begun` begins with, what was read beyond it, why there is no more, and whether there may be."""
    end = begun.find(b"\n")
    kept, rest = begun[: len(begun) if end < 0 else end], bytearray() if end < 0 else begun[end + 1 :]
    size = len(kept)
    while end < 0 and more:
        buffer, filled, broken = _read(file, b"")
        more, end = filled == len(buffer), buffer.find(b"\n", 0, filled)
        piece = buffer[: filled if end < 0 else end]
        size += len(piece)
        kept = kept + piece if size <= MAX_KEPT_BYTES else kept[:0]
        rest = bytearray() if end < 0 else buffer[end + 1 : filled]
    if end < 0 and broken:
        return Unread(number, bytes(kept), broken), rest, "", False
    told = ""
    if size > MAX_KEPT_BYTES:
        kept, told = kept[:0], " (too long to set aside: it stays in the file only)"
    reason = f"the line has {size:,} bytes; expected at most {MAX_ROW_BYTES:,}{told}"
    return Unread(number, bytes(kept), reason), rest, broken, more
