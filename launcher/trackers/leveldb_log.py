"""LevelDB's log format, in which W&B and SwanLab keep runs on disk: blocks of 32 KiB with pieces of records, each piece
after seven bytes: checksum, length, type."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK = 2**15
HEADER = 7
"""Bytes of a piece's header, and of the file's, which both programs begin with seven bytes of their own."""
LAST_PIECES = (1, 4)
"""Types of a piece that ends a record: a whole record, or its last part."""


def records(file: Path) -> Iterator[bytes]:
    """The records of a file, in their order; one that is cut at its end is left out."""
    with file.open("rb") as log:
        log.seek(HEADER)
        position, record = HEADER, b""
        while True:
            block_rest = BLOCK - position % BLOCK
            if block_rest < HEADER:  # padding
                position = log.seek(position + block_rest)
                continue
            header = log.read(HEADER)
            if len(header) < HEADER:
                return
            _, size, kind = struct.unpack("<IHB", header)
            data = log.read(size)
            if len(data) < size or not kind:
                return
            position += HEADER + size
            record += data
            if kind in LAST_PIECES:
                yield record
                record = b""
