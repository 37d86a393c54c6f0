"""What routes stand on: how the server was started, its database, and its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from launcher.server.access import AccessTokens
from launcher.server.columns import LogCache, Memo
from launcher.server.database import Database
from launcher.server.ingest import Ingest
from launcher.server.jobs import Jobs
from launcher.server.launching import Launching
from launcher.server.live import LiveStreams


@dataclass(frozen=True)
class ServerSettings:
    """How a server was started."""

    root: Path = Path("runs")
    """Run folders that it may read, and where it starts new ones."""
    also: tuple[Path, ...] = ()
    """Run folders and logs of other programs, shown beside them."""
    database: str = ""
    """An SQLAlchemy address; empty for SQLite in the run root."""
    token: str = ""
    """Wanted with every request where it is not empty."""
    reindex: bool = False
    """Whether the database is made again from the folders."""
    host: str = "127.0.0.1"
    """Where it listens: a name under which it may be asked."""


@dataclass(frozen=True)
class Services:
    """What routes stand on."""

    settings: ServerSettings
    database: Database
    jobs: Jobs
    launching: Launching
    tokens: AccessTokens
    ingest: Ingest
    logs: LogCache = field(default_factory=LogCache)
    """What was read of the runs that were asked for lately."""
    memo: Memo = field(default_factory=Memo)
    """Answers that take long, by what they are made of."""
    live: LiveStreams = field(default_factory=LiveStreams)


def services_of(request: Request) -> Services:
    """Those of the application that was asked."""
    found: Services = request.app.state.services
    return found


UsesServices = Annotated[Services, Depends(services_of)]
