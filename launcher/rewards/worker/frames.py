"""Values sent between two processes: JSON after its length. NaN and lone surrogates are preserved."""

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
    channel.settimeout(_seconds_left(until))
    channel.sendall(_LENGTH.pack(len(text)) + text)


def receive(channel: socket.socket, until: float | None = None) -> Any:
    """The next value. Raises `EOFError` where the other end is closed, `TimeoutError` after `until`, `ValueError` where
    it is not valid JSON or longer than LONGEST.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(channel, _LENGTH.size, until))
    if length > LONGEST:
        raise ValueError(f"{length} bytes are more than {LONGEST}")
    try:
        return json.loads(_receive_exactly(channel, length, until))
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deeply") from error


def _receive_exactly(channel: socket.socket, size: int, until: float | None) -> bytes:
    received = bytearray()
    while len(received) < size:
        channel.settimeout(_seconds_left(until))
        chunk = channel.recv(min(size - len(received), 2**20))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _seconds_left(until: float | None) -> float | None:
    if until is None:
        return None
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
