"""What routes use: the server's settings, its database, its jobs, and the run of a request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from launcher.core.events import Event
from launcher.runs.folder import Folder
from launcher.server.access import AccessTokens, Scope
from launcher.server.columns import Columns
from launcher.server.database import Database
from launcher.server.ingest import Ingest
from launcher.server.jobs import Jobs, Mark
from launcher.server.launching import Launching
from launcher.server.live import LiveStreams
from launcher.server.values import Uuid
from launcher.views.read import LogOrRun

MOST_BYTES, MOST_RESULTS = 160 * 2**20, 64
LOCKS = 64  # each for the keys of one remainder


class SharedCache:
    """Values by key, of at most `most` in all by `size_of`: the least recently used are evicted, and the newest stays
    even if it is larger. Each value is computed by one thread, for which others that ask for it wait."""

    def __init__(self, most: int, size_of: Callable[[Any], int]) -> None:
        self._most, self._size_of, self._values = most, size_of, OrderedDict[Hashable, Any]()
        self._lock, self._key_locks = threading.Lock(), [threading.Lock() for _ in range(LOCKS)]

    @property
    def size(self) -> int:
        with self._lock:
            return sum(map(self._size_of, self._values.values()))

    def update(self, key: Hashable, change: Callable[[Any], Any]) -> Any:
        """Store and return what `change` makes of the value, which is None where there is none."""
        with self._key_locks[hash(key) % LOCKS]:
            value = change(self._values.get(key))
            with self._lock:
                self._values[key] = value
                self._values.move_to_end(key)
                size = sum(map(self._size_of, self._values.values()))
                while size > self._most and len(self._values) > 1:
                    size -= self._size_of(self._values.popitem(last=False)[1])
        return value

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value, or what `make` gives where there is none."""
        return self.update(key, lambda value: make() if value is None else value)


@dataclass(frozen=True)
class ServerSettings:
    """How a server was started."""

    root: Path = Path("runs")
    """Where it finds run folders, and creates those of new runs."""
    also: tuple[Path, ...] = ()
    """More folders of runs, and logs of other programs, shown beside those of `root`."""
    database: str = ""
    """An SQLAlchemy address; empty for SQLite in the run root."""
    tokens: Mapping[str, Scope] = field(default_factory=dict)
    """Bearer tokens, of which every request must send one; empty where none is wanted."""
    reindex: bool = False
    """Whether the index of jobs is rebuilt from their folders."""
    host: str = "127.0.0.1"
    """The address it listens on, which the Host header of a request may name."""


@dataclass(frozen=True)
class Services:
    """What routes use; one per application."""

    settings: ServerSettings
    database: Database
    jobs: Jobs
    launching: Launching
    tokens: AccessTokens
    ingest: Ingest
    columns: SharedCache = field(default_factory=lambda: SharedCache(MOST_BYTES, lambda columns: columns.nbytes))
    """`Columns` of recently requested runs, by the path of their event log."""
    memo: SharedCache = field(default_factory=lambda: SharedCache(MOST_RESULTS, lambda _: 1))
    """Findings, which are slow to compute, by the run and its mark."""
    live: LiveStreams = field(default_factory=LiveStreams)


def services_of(request: Request) -> Services:
    """The services of the application that handles this request."""
    services: Services = request.app.state.services
    return services


UsesServices = Annotated[Services, Depends(services_of)]


# ---- the run of a request

StepNumber = Annotated[int, Query(ge=0, lt=2**53)]


@dataclass(frozen=True)
class ReadRun:
    """A run, read from its folder."""

    uuid: str
    folder: Folder
    services: Services
    mark: Mark
    """Sizes and times of its files: equal where nothing has changed."""
    log: Path | None = None
    """The log from which the run was read, where another program wrote one."""

    @cached_property
    def columns(self) -> Columns:
        """Its steps as arrays, and the index of its other events. Raises `OSError`."""
        path = self.folder.events
        columns: Columns = self.services.columns.update(path, lambda old: old.read_on() if old else Columns.of(path))
        return columns

    def source(self, *kinds: type[Event], steps: Collection[int] = ()) -> LogOrRun:
        """The run as views read it, with events of these kinds only; also only those of these `steps`, where each of
        the steps has some."""
        log_columns = self.columns
        covered_steps = set(log_columns.places_of(*kinds)[:, 3].tolist())
        only_steps = steps if steps and covered_steps.issuperset(steps) else None
        return LogOrRun(self.folder, "rlrun", lambda: log_columns.events(*kinds, steps=only_steps))


def read_run(uuid: Uuid, services: UsesServices) -> ReadRun:
    """Raises `Problems` where there is no such job, or its folder holds links or pipes in place of files."""
    job = services.jobs.get(uuid)
    job.folder.check()
    return ReadRun(uuid, job.folder, services, job.mark, Path(job.record.log) if job.record.log else None)


UsesRun = Annotated[ReadRun, Depends(read_run)]


def read_own_run(run: UsesRun) -> ReadRun:
    """Raises `Problems` for the log of another program, which has neither settings nor checkpoints."""
    run.services.launching.check_own(run.uuid)
    return run


UsesOwnRun = Annotated[ReadRun, Depends(read_own_run)]
