"""Event files of TensorBoard: records of a length, a checksum, a message of protobuf and a checksum.

A message has a step (field 2) and a summary (5) of values (1), each with a tag (1) and a number: `simple_value` (2), or
a tensor (8) with one number in `tensor_content` (4), `float_val` (5) or `double_val` (6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from launcher.core.events import Event, Step
from launcher.core.files import open_file

NAME = ".tfevents."
_HEADER = struct.Struct("<QI")  # a length, and its checksum
_LONGEST = 2**24  # bytes of a message that is read; one with pictures is passed over
_NUMBERS = {4: "<f", 8: "<d"}
Field = tuple[int, int | bytes]


def is_one(start: bytes) -> bool:
    """Whether a file that begins so is one."""
    return b"brain.Event:" in start[_HEADER.size : 64]


def read_events(path: Path, at: float, after: int = 0) -> Iterator[Event]:
    """Steps, in their order, without the first `after`. A record that was cut ends them. Raises `OSError`."""
    with open_file(path) as file:
        scalars = (found for message in _messages(file) for found in _scalars(message))
        for seen, (step, group) in enumerate(groupby(scalars, key=lambda found: found[0])):
            metrics = {tag: value for _, tag, value in group}
            if seen >= after:
                yield Step(at=at, step=step, metrics=metrics)


def _messages(file: BinaryIO) -> Iterator[bytes]:
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        size = _HEADER.unpack(header)[0]
        if size > _LONGEST:
            file.seek(size + 4, 1)
        elif len(message := file.read(size + 4)) == size + 4:
            yield message[:-4]


def _scalars(message: bytes) -> Iterator[tuple[int, str, float]]:
    fields = list(_fields(message))
    step = next((content for number, content in fields if number == 2 and isinstance(content, int)), 0)
    for value in _inner(fields, 5, 1):
        parts = list(_fields(value))
        tag = next((content for number, content in parts if number == 1 and isinstance(content, bytes)), b"")
        numbers = [*_inner(parts, 2), *(each for place in (4, 5, 6) for each in _inner(parts, 8, place))]
        if len(numbers) == 1 and len(numbers[0]) in _NUMBERS:
            yield step, tag.decode("utf-8", "replace"), struct.unpack(_NUMBERS[len(numbers[0])], numbers[0])[0]


def _inner(fields: list[Field], number: int, *path: int) -> Iterator[bytes]:
    """The contents of the fields of that number, or of those within them."""
    for found, content in fields:
        if found == number and isinstance(content, bytes):
            yield from _inner(list(_fields(content)), *path) if path else [content]


def _fields(message: bytes) -> Iterator[Field]:
    """Number and content of each field; those behind one that cannot be read are passed over."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind, size = key & 7, {1: 8, 5: 4}.get(key & 7, 0)
        if kind == 0:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        if kind == 2:
            size, place = _varint(message, place)
        if not 0 < size <= len(message) - place:
            if kind == 2 and size == 0:
                continue
            return
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    for each in message[place : place + 10]:
        number, shift, place = number | (each & 127) << shift, shift + 7, place + 1
        if each < 128:
            break
    return number, place
