"""The spool: a file for each session of a logger, to which only its script appends, a row a line; it is deleted once
its rows have arrived.

    SPOOL/JOB/SESSION.jsonl    {"kind":"metrics","at":1700000000.0,"step":3,"metrics":{"loss":1.2}}

A row's number is that of its line. SPOOL is RLRUN_SPOOL, by default ~/.cache/rlrun/spool, else a temporary folder. Byte
0 of the file is locked while its script lives, byte 1 while a process delivers it: such locks are no child's.
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
"""Names that a job may have."""
LONGEST_TEXT = 20_000  # characters
LONGEST_ROW = 2**20  # bytes
BATCH_BYTES, BATCH_ROWS = 2**21, 500
_WRITER, _DELIVERER = 0, 1


def spool_folders() -> Iterator[Path]:
    """Where a spool may be, best first."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    yield Path(os.environ.get("RLRUN_SPOOL") or os.path.join(cache, "rlrun", "spool"))
    yield Path(tempfile.gettempdir(), f"rlrun-spool-{os.getuid()}")


def text_of(value: object) -> str:
    """As any program can read it: short, and without what UTF-8 cannot hold."""
    text = try_call(lambda: str(value))
    text = text.reason if isinstance(text, CallFailure) else text
    return text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def _plain(value: Any) -> Any:
    """What JSON has no word for: the number of a scalar of numpy, torch or others, else the text."""
    if isinstance(value, Mapping):
        return dict(value)
    for call in (getattr(value, "item", None), partial(float, value)):
        if callable(call) and isinstance(found := try_call(call), float | int):
            return found
    return text_of(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def encode(row: Mapping[str, Any]) -> bytes:
    """One line. Numbers that JSON cannot hold are the texts NaN, Infinity, -Infinity."""
    try:
        return _ENCODER.encode(row).encode() + b"\n"
    except (ValueError, TypeError):
        return _ENCODER.encode(_writable(row)).encode() + b"\n"


def _writable(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {text_of(key): _writable(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return list(map(_writable, node))
    node = node if isinstance(node, str | int | float | None) else _plain(node)
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    return node


class SpoolWriter:
    """A new session of a job, until its script ends. Raises `OSError` where no folder takes it."""

    def __init__(self, job: str) -> None:
        refused: OSError | None = None
        for folder in spool_folders():
            self.path = folder / job / f"{time.time_ns():016x}-{secrets.token_hex(4)}.jsonl"
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(new := self.path.with_suffix(".new"), flags, 0o600)
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
                new.rename(self.path)  # which others see only now: what is not locked has no script
                break
            except OSError as error:
                refused = error
        else:
            raise refused or FileNotFoundError(self.path)
        self._torn = False
        self.refused = ""
        """Why rows were lost; empty while none was."""

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Hand rows to the system, which keeps them whatever becomes of this process."""
        found = try_call(lambda: b"".join(map(encode, rows)))
        if isinstance(found, CallFailure) or len(found) > LONGEST_ROW:
            what = found.reason if isinstance(found, CallFailure) else f"has {len(found):,} bytes of {LONGEST_ROW:,}"
            self.refused = f"a row {what}"
            return
        lines = b"\n" + found if self._torn else found
        try:
            self._torn = os.write(self._file, lines) < len(lines)  # where the disk is full
        except OSError as error:
            self.refused = error.strerror or str(error)

    def close(self) -> None:
        os.close(self._file)


class SpoolReader:
    """A session's file, for the process that delivers it. Its file stays open: closing it would end the locks."""

    def __init__(self, path: Path) -> None:
        self.path, self.job, self.session = path, path.parent.name, path.stem
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def claim(self) -> bool:
        """Whether no other process delivers it."""
        return self._lock(_DELIVERER)

    def writer_gone(self) -> bool:
        """Whether its script has finished or ended: nothing more comes."""
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
        """When its script was heard last."""
        return os.fstat(self._file).st_mtime

    def read(self, offset: int) -> list[bytes]:
        """Whole lines from a byte on, a batch of them, with their ends."""
        block = os.pread(self._file, BATCH_BYTES, offset)
        return [line + b"\n" for line in block.split(b"\n")[:-1][:BATCH_ROWS]]

    def lines(self) -> Iterator[bytes]:
        offset = 0
        while found := self.read(offset):
            yield from found
            offset += sum(map(len, found))

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        with suppress(OSError):  # of another session, too
            self.path.parent.rmdir()


def read_row(line: bytes) -> dict[str, Any]:
    """The row of a line; empty where a full disk has torn it."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
