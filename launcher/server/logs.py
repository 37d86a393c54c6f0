"""Logs of other programs, read as by `rlrun watch`, and shown beside the runs.

Each log is converted to an event log below the run root, which is read like that of a run. A log that has grown is
converted again as a whole; if the new event log only extends the old one, it is appended to that, else it replaces it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from launcher.core.events import Event, Started, to_line
from launcher.core.problems import Problems
from launcher.core.state import RunState, after
from launcher.logs.sources import LogSource, open_log
from launcher.server.records import CREATED, JobRecord, id_of_place
from launcher.views.findings import PROGRAMS
from launcher.views.log_state import LogState
from launcher.views.read import LogAsFolder, logs_in

PATIENCE = 20.0  # a log is read again at the earliest after so many times as long as reading it took
BLOCK = 2**20


def stamp_of(file: str | Path) -> tuple[int, int]:
    """Size and time of the last write; zeros where there is no such file."""
    try:
        stat = os.stat(file)
    except OSError:
        return (0, 0)
    return stat.st_size, stat.st_mtime_ns


@dataclass(eq=False)
class CopiedLog:
    """A log, and its event log."""

    record: JobRecord
    folder: LogAsFolder
    state: RunState = field(default_factory=RunState)
    stamp: tuple[int, int] = (-1, -1)
    """Size and time of the log when it was read last."""
    began: float = 0.0
    """Unix seconds. A log has no times, so the first reading places its last event at the time of the last write."""
    wait_until: float = 0.0

    def read(self) -> None:
        """Convert the log again if it has changed. Raises `OSError` and `Problems`."""
        start, stamp = time.monotonic(), stamp_of(self.record.log)
        if stamp == self.stamp or start < self.wait_until:
            return
        source = open_log(Path(self.record.log))
        self.began = self.began or max(source.at - max((each.at for each in _events_of(source)[1]), default=0.0), 0.0)
        log, events = _events_of(source)
        state, new = RunState(), self.folder.path / ".events.new"
        self.folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new.open("w") as file:
            first: Event = Started(at=0.0, run=self.folder.title, algorithm=source.kind, processes=0)
            for seq, event in enumerate(chain([first], events)):
                shifted = replace(event, at=self.began + event.at)
                state = after(state, shifted)
                file.write(to_line(shifted, seq=seq, attempt=1) + "\n")
        _extend_or_replace(self.folder.events, new)
        ended = log.ended(source.at)
        self.state = replace(state, status=ended.status, why=ended.why, phase=ended.phase, last_at=source.at)
        self.stamp, self.wait_until = stamp, time.monotonic() + PATIENCE * (time.monotonic() - start)


def _events_of(source: LogSource) -> tuple[LogState, Iterator[Event]]:
    """A log's events as those of a run, `at` in seconds since its beginning, and the state that they update."""
    log = LogState(source.path.name, source.kind)
    return log, chain(chain.from_iterable(map(log.see, source.events())), log.finish())


def _extend_or_replace(events: Path, new: Path) -> None:
    """Append to `events` what `new` has more, so that readers read on; replace it where `new` does not begin so."""
    with suppress(FileNotFoundError), events.open("r+b") as target, new.open("rb") as source:
        while block := target.read(BLOCK):
            if source.read(len(block)) != block:
                break
        else:
            while block := source.read(BLOCK):
                target.write(block)
            new.unlink()
            return
    new.replace(events)


class CopiedLogs:
    """The logs among `also`, the paths shown beside the run root; by the folders of their event logs."""

    def __init__(self, root: Path, also: Iterable[Path]) -> None:
        """Raises `Problems` where one of `also` is neither a folder nor a readable log."""
        self.root, self.also = root, tuple(also)
        self._logs = dict[str, CopiedLog]()
        self._passed_over = dict[str, tuple[int, int]]()
        for path in self.also:
            if not path.is_dir():
                open_log(path)

    def get(self, folder: Path) -> CopiedLog | None:
        return self._logs.get(str(folder))

    def look(self) -> Iterator[str]:
        """Read the logs that have changed; yields the folders of all known ones."""
        for path in self.also:
            is_dir = path.is_dir()
            for log in logs_in(path) if is_dir else [path]:
                with suppress(OSError, Problems):  # gone, or being written: the next look reads it
                    self._read(log.absolute(), only_known=is_dir)
        yield from list(self._logs)

    def _read(self, log: Path, *, only_known: bool) -> None:
        uuid = id_of_place(str(log))
        folder = LogAsFolder(self.root / CREATED / uuid, str(log))
        copied = self._logs.get(str(folder.path))
        if copied is None:
            stamp = stamp_of(log)
            if self._passed_over.get(uuid) == stamp:
                return
            self._passed_over[uuid] = stamp
            source = open_log(log)
            if only_known and source.kind == "unknown":
                return
            origin = PROGRAMS.get(source.kind, source.kind)
            place = f"{CREATED}/{uuid}"
            record = JobRecord(uuid, log.name, origin=origin, created_at=source.at, place=place, log=str(log))
            copied = CopiedLog(record, folder)
        copied.read()
        self._logs[str(folder.path)] = copied
