"""Values between two processes: JSON behind its length. NaN and lone surrogates come over as they are."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LONGEST = 64 * 2**20  # bytes of one value
_LENGTH = struct.Struct(">I")


def send(channel: socket.socket, value: Any, until: float | None = None) -> None:
    """Raises `TimeoutError` after `until` (monotonic seconds), `OSError` where the other end is closed."""
    text = json.dumps(value, default=str).encode()
    channel.settimeout(_left(until))
    channel.sendall(_LENGTH.pack(len(text)) + text)


def receive(channel: socket.socket, until: float | None = None) -> Any:
    """The next value. Raises `EOFError` where the other end is closed, `TimeoutError` after `until`, `ValueError` for
    what is no value.
    """
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, until))
    if length > LONGEST:
        raise ValueError(f"{length} bytes are more than {LONGEST}")
    try:
        return json.loads(_exactly(channel, length, until))
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deeply") from error


def _exactly(channel: socket.socket, size: int, until: float | None) -> bytes:
    received = bytearray()
    while len(received) < size:
        channel.settimeout(_left(until))
        piece = channel.recv(min(size - len(received), 2**20))
        if not piece:
            raise EOFError
        received += piece
    return bytes(received)


def _left(until: float | None) -> float | None:
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
