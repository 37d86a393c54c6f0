"""A file of lines in blocks of whole lines, so that a block may be read in columns or line by line."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from launcher.data.plain import MAX_ROW_BYTES
from launcher.problems import said

MAX_KEPT_BYTES = 64 * 2**20
"""A still longer line is not held in memory; it stays in its file only."""
BLOCK_BYTES = MAX_ROW_BYTES
"""About so much is held at a time."""
_CHUNK_BYTES = 2**20
BOM = b"\xef\xbb\xbf"


class Bytes(Protocol):
    def read1(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Block:
    """Whole lines; only the file's last may lack its newline."""

    first: int  # number of its first line, from 1
    data: bytes

    def lines(self) -> list[tuple[int, bytes]]:
        """Each line with its number, without its newline."""
        lines = self.data.split(b"\n")
        return list(enumerate(lines if lines[-1] else lines[:-1], start=self.first))

    def halves(self) -> tuple[Block, Block]:
        """The same lines in two blocks, cut where the middle is."""
        cut = self.data.find(b"\n", len(self.data) // 2) + 1
        cut = cut if 0 < cut < len(self.data) else self.data.rfind(b"\n", 0, len(self.data) - 1) + 1
        first, second = self.data[:cut], self.data[cut:]
        return Block(self.first, first), Block(self.first + first.count(b"\n"), second)


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
    held, number = _Held(), 1
    while True:
        try:
            chunk = file.read1(_CHUNK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            for found in held.rest(number, f"the file breaks off in this line: {said(error)}"):
                yield found
            return
        if not chunk:
            break
        for found in held.add(chunk, number):
            yield found
            number += found.data.count(b"\n") if isinstance(found, Block) else 1
    for found in held.rest(number, ""):
        yield found


class _Held:
    """What was read and not yet handed on: some whole lines, and the beginning of one."""

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self.waiting = 0  # bytes in `whole`
        self.begun = bytearray()  # of a line; emptied where the line is too long to be kept
        self.size = 0  # of that line so far

    def add(self, chunk: bytes, number: int) -> Iterator[Block | Unread]:
        cut = chunk.find(b"\n") + 1
        if self.size + (cut or len(chunk)) > MAX_ROW_BYTES + 1:  # its newline does not count
            yield from self._long(chunk, cut, number)
            return
        end = chunk.rfind(b"\n") + 1
        if end:
            self.whole += (bytes(self.begun), chunk[:end])
            self.waiting += len(self.begun) + end
            self.begun.clear()
        self.begun += chunk[end:]
        self.size = len(self.begun)
        if self.waiting >= BLOCK_BYTES:
            yield self._take(number)

    def _long(self, chunk: bytes, cut: int, number: int) -> Iterator[Block | Unread]:
        """Go on with a line that is too long to be parsed."""
        if self.waiting:
            block = self._take(number)
            number += block.data.count(b"\n")
            yield block
        piece = chunk[: cut - 1] if cut else chunk
        self.size += len(piece)
        if self.size <= MAX_KEPT_BYTES:
            self.begun += piece
        else:
            self.begun.clear()
        if not cut:
            return
        line = self._line(number, "")
        yield line
        yield from self.add(chunk[cut:], number + 1)

    def _line(self, number: int, reason: str) -> Unread:
        line, size = bytes(self.begun), self.size
        self.begun.clear()
        self.size = 0
        kept = "" if size <= MAX_KEPT_BYTES else " (too long to set aside: it stays in the file only)"
        return Unread(number, line, reason or f"the line has {size:,} bytes; at most {MAX_ROW_BYTES:,} would do{kept}")

    def _take(self, number: int) -> Block:
        block = Block(number, b"".join(self.whole))
        self.whole.clear()
        self.waiting = 0
        return block

    def rest(self, number: int, broken: str) -> Iterator[Block | Unread]:
        """What is left at the end; `broken` says why there is no more."""
        if not broken and self.size <= MAX_ROW_BYTES:
            self.whole.append(bytes(self.begun))
            self.waiting += self.size
            self.size = 0
        if self.waiting:
            block = self._take(number)
            number += block.data.count(b"\n")
            yield block
        if broken or self.size:
            yield self._line(number, broken)
