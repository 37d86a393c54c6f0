"""How far a download is: workers write it down, one reader shows it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from launcher.hubs.repo import RemoteFile

State = Literal["waiting", "checking", "fetching", "done", "failed"]
WINDOW_S = 5.0


@dataclass(frozen=True)
class FileProgress:
    path: str
    size: int
    there: int
    """Bytes on disk: those of this call and of earlier ones."""
    state: State


@dataclass(frozen=True)
class Progress:
    files: tuple[FileProgress, ...]
    fetched: int
    """Bytes that came over the network in this call."""
    bytes_per_s: float
    """Over the last seconds."""
    notes: tuple[str, ...]
    """What went wrong and was mended since the last call, one line each."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def there(self) -> int:
        return sum(file.there for file in self.files)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last byte, at the speed of the last seconds."""
        return (self.size - self.there) / self.bytes_per_s if self.bytes_per_s > 0 else None


Watch = Callable[[Progress], None]


class Abortable(Protocol):
    def abort(self) -> None: ...


class Board:
    """Written by the workers, read by the one who watches; also the place where all of them are stopped."""

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._files = {file.path: FileProgress(file.path, file.size, 0, "waiting") for file in files}
        self._notes: list[str] = []
        self._open: set[Abortable] = set()
        self._fetched = 0
        self._times: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def at(self, file: RemoteFile, there: int, state: State, fetched: int = 0) -> None:
        with self._lock:
            self._files[file.path] = FileProgress(file.path, file.size, there, state)
            self._fetched += fetched

    def failed(self, file: RemoteFile) -> None:
        with self._lock:
            self._files[file.path] = replace(self._files[file.path], state="failed")

    def note(self, text: str) -> None:
        with self._lock:
            self._notes.append(text)

    def hold(self, connection: Abortable) -> None:
        """It is aborted when all are stopped."""
        with self._lock:
            self._open.add(connection)
            stopping = self.stopping.is_set()
        if stopping:
            connection.abort()

    def let_go(self, connection: Abortable) -> None:
        with self._lock:
            self._open.discard(connection)

    def stop(self) -> None:
        self.stopping.set()
        with self._lock:
            waiting = list(self._open)
        for connection in waiting:
            connection.abort()

    def read(self) -> Progress:
        """Where everything stands; each note is handed out once."""
        now = time.monotonic()
        with self._lock:
            notes, self._notes = tuple(self._notes), []
            self._times.append((now, self._fetched))
            while len(self._times) > 2 and now - self._times[0][0] > WINDOW_S:
                self._times.popleft()
            began, before = self._times[0]
            speed = (self._fetched - before) / (now - began) if now > began else 0.0
            return Progress(tuple(self._files.values()), self._fetched, speed, notes)
