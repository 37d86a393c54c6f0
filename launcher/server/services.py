"""What routes use: the server's settings, its database, and its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from launcher.server.access import AccessTokens
from launcher.server.columns import Columns
from launcher.server.database import Database
from launcher.server.ingest import Ingest
from launcher.server.jobs import Jobs
from launcher.server.launching import Launching
from launcher.server.live import LiveStreams
from launcher.server.shared_cache import SharedCache
from launcher.server.tokens import TokenPlaces

MOST_BYTES, MOST_RESULTS = 160 * 2**20, 64

Content = TypeVar("Content", Columns, TokenPlaces)
"""What was read of a file that is only appended to."""


@dataclass(frozen=True)
class ServerSettings:
    """How a server was started."""

    root: Path = Path("runs")
    """Where it finds run folders, and creates those of new runs."""
    also: tuple[Path, ...] = ()
    """More folders of runs, and logs of other programs, shown beside those of `root`."""
    database: str = ""
    """An SQLAlchemy address; empty for SQLite in the run root."""
    token: str = ""
    """The bearer token that every request must send; empty for none."""
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
    read: SharedCache = field(default_factory=lambda: SharedCache(MOST_BYTES, lambda content: content.nbytes))
    """What was read of files of recently requested runs, by path."""
    memo: SharedCache = field(default_factory=lambda: SharedCache(MOST_RESULTS, lambda _: 1))
    """Results that are slow to compute, by their inputs."""
    live: LiveStreams = field(default_factory=LiveStreams)


def read_now(read: SharedCache, empty: Content) -> Content:
    """What the file of `empty.path` holds now; only what was appended since the last call is read. Raises `OSError`."""

    def read_on(content: Content | None) -> Content:
        try:
            return (content or empty).read_on()
        except FileNotFoundError:
            return empty

    content: Content = read.update(empty.path, read_on)
    return content


def services_of(request: Request) -> Services:
    """The services of the application that handles this request."""
    services: Services = request.app.state.services
    return services


UsesServices = Annotated[Services, Depends(services_of)]
