"""The progress of a download, which worker threads record and one reader shows."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.hubs.repo import RemoteFile


@dataclass(frozen=True)
class Progress:
    done_bytes: int
    total_bytes: int
    done_files: int
    """Files that are verified and have their final names."""
    total_files: int
    bytes_per_s: float
    """Mean rate from the network since the download began."""
    notes: tuple[str, ...]
    """Lines on attempts that failed and are repeated, since the last call."""


def import_tqdm_disabled() -> None:
    """Import tqdm so that it draws no bars in this process, by the variable that it reads when it is imported.

    Does nothing where it is imported already; the variable is not left to other processes.
    """
    previous = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    try:
        importlib.import_module("tqdm.auto")
    finally:
        if previous is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = previous


class SilentBar:
    """The part of tqdm's interface that the clients use; draws nothing. `update` gets the number of new bytes."""

    def __init__(self, **_: object) -> None: ...

    def __enter__(self) -> SilentBar:
        return self

    def _ignore(self, *_: object, **__: object) -> None: ...

    __exit__ = close = update = set_postfix_str = _ignore
    update_transfer = set_transfer_postfix_str = (
        _ignore  # bytes of the network, where `update` counts those on disk (Xet)
    )


OnProgress = Callable[[Progress], None]


class Stopped(BaseException):
    """Raised in a worker thread once all are to stop; no `Exception`, so that no client takes it for a fault."""


class ProgressBoard:
    """Written by the workers, read by the thread that watches, which also stops the workers by it."""

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._total_bytes = sum(file.size for file in files)
        self._done_bytes = dict.fromkeys((file.path for file in files), 0)
        self._done_files = set[str]()
        self._notes: list[str] = []
        self._fetched, self._began = 0, time.monotonic()

    def show(self, file: RemoteFile, done_bytes: int, *, done: bool = False) -> None:
        """Record how much of a file is there, and whether that is all, verified. Raises `Stopped`."""
        if self.stopping.is_set():
            raise Stopped
        with self._lock:
            self._done_bytes[file.path] = done_bytes
            self._done_files |= {file.path} if done else set()

    def add_fetched(self, file: RemoteFile, count: int) -> None:
        """Record `count` more bytes; a negative `count` where the client starts again. Raises `Stopped`."""
        self.show(file, min(max(self._done_bytes[file.path] + count, 0), file.size))
        with self._lock:
            self._fetched += max(count, 0)

    def note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)

    def read(self) -> Progress:
        """The progress of all files together; each note is returned once."""
        elapsed = time.monotonic() - self._began
        with self._lock:
            notes, self._notes = tuple(self._notes), []
            return Progress(
                sum(self._done_bytes.values()), self._total_bytes, len(self._done_files), len(self._done_bytes),
                self._fetched / elapsed if elapsed else 0.0, notes,
            )  # fmt: skip
