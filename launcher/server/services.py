"""What routes use: the server's settings, its database, and its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from launcher.server.access import AccessTokens
from launcher.server.database import Database
from launcher.server.ingest import Ingest
from launcher.server.jobs import Jobs
from launcher.server.launching import Launching
from launcher.server.live import LiveStreams
from launcher.server.shared_cache import SharedCache

MOST_BYTES, MOST_RESULTS = 160 * 2**20, 64


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
