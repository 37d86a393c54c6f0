"""The spool: one file for each session of a logger. Only its script appends to it, one row a line; it is deleted once
all rows have arrived.

    SPOOL/JOB/SESSION.jsonl    {"kind":"metrics","at":1700000000.0,"step":3,"metrics":{"loss":1.2}}

A row's number is that of its line. SPOOL is RLRUN_SPOOL, by default ~/.cache/rlrun/spool, else a temporary folder. Byte
0 of the file is locked while its script lives, byte 1 while a process delivers it; children do not inherit these locks.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from launcher.core.user_code import CallFailure, try_call

JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""Valid job ids."""
LONGEST_TEXT = 20_000  # characters
LONGEST_ROW = 2**20  # bytes
BATCH_BYTES, BATCH_ROWS = 2**21, 500
_WRITER, _DELIVERER = 0, 1


def spool_folders() -> Iterator[Path]:
    """Candidate folders for the spool, in order of preference."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    yield Path(os.environ.get("RLRUN_SPOOL") or os.path.join(cache, "rlrun", "spool"))
    yield Path(tempfile.gettempdir(), f"rlrun-spool-{os.getuid()}")


def text_of(value: object) -> str:
    """`str(value)`, cut to LONGEST_TEXT, with what UTF-8 cannot encode escaped; never raises."""
    text = try_call(lambda: str(value))
    text = text.reason if isinstance(text, CallFailure) else text
    return text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def _json_value(value: Any) -> Any:
    """A JSON value for an unknown type: the number for scalars of numpy, torch and others, else the text."""
    if isinstance(value, Mapping):
        return dict(value)
    for call in (getattr(value, "item", None), partial(float, value)):
        if callable(call) and isinstance(number := try_call(call), float | int):
            return number
    return text_of(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_json_value)


def encode(row: Mapping[str, Any]) -> bytes:
    """A row as one JSON line; non-finite numbers become the texts NaN, Infinity, -Infinity."""
    try:
        return _ENCODER.encode(row).encode() + b"\n"
    except (ValueError, TypeError):
        return _ENCODER.encode(_writable(row)).encode() + b"\n"


def _writable(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {text_of(key): _writable(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return list(map(_writable, node))
    node = node if isinstance(node, str | int | float | None) else _json_value(node)
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    return node


class SpoolWriter:
    """The file of a new session. Raises `OSError` where no folder is writable."""

    def __init__(self, job: str) -> None:
        last_error: OSError | None = None
        for folder in spool_folders():
            self.path = folder / job / f"{time.time_ns():016x}-{secrets.token_hex(4)}.jsonl"
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(hidden_path := self.path.with_suffix(".new"), flags, 0o600)
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
                hidden_path.rename(self.path)  # visible once locked: an unlocked file is one of an ended script
                break
            except OSError as error:
                last_error = error
        else:
            raise last_error or FileNotFoundError(self.path)
        self._last_line_cut = False
        self.refused = ""
        """Why rows were lost; empty if none was."""

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Write rows to the file, where they survive this process. Never raises: errors set `refused`."""
        data = try_call(lambda: b"".join(map(encode, rows)))
        if isinstance(data, CallFailure) or len(data) > LONGEST_ROW:
            why = data.reason if isinstance(data, CallFailure) else f"has {len(data):,} bytes of {LONGEST_ROW:,}"
            self.refused = f"a row {why}"
            return
        lines = b"\n" + data if self._last_line_cut else data
        try:
            self._last_line_cut = os.write(self._file, lines) < len(lines)  # True if the disk is full
        except OSError as error:
            self.refused = error.strerror or str(error)

    def close(self) -> None:
        os.close(self._file)


class SpoolReader:
    """A session's file, for the process that delivers it. It is opened only once: any close would release the locks."""

    def __init__(self, path: Path) -> None:
        self.path, self.job, self.session = path, path.parent.name, path.stem
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def claim(self) -> bool:
        """Lock it for delivery; False where another process delivers it."""
        return self._lock(_DELIVERER)

    def writer_gone(self) -> bool:
        """Whether its script has finished or ended, so that no more rows come."""
        if gone := self._lock(_WRITER):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WRITER)
        return gone

    def _lock(self, byte: int) -> bool:
        with suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            return True
        return False

    @property
    def written_at(self) -> float:
        """Unix seconds of the last write."""
        return os.fstat(self._file).st_mtime

    def read(self, offset: int) -> list[bytes]:
        """A batch of complete lines from byte `offset` on, with their line ends."""
        block = os.pread(self._file, BATCH_BYTES, offset)
        return [line + b"\n" for line in block.split(b"\n")[:-1][:BATCH_ROWS]]

    def lines(self) -> Iterator[bytes]:
        offset = 0
        while batch := self.read(offset):
            yield from batch
            offset += sum(map(len, batch))

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # fails while it holds other sessions
            self.path.parent.rmdir()


def read_row(line: bytes) -> dict[str, Any]:
    """The row of a line; empty if it is not a JSON object, as one that a full disk cut off."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
