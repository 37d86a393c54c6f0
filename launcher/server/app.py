"""The application: its parts, and the routes that use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request

from launcher import __version__


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


@dataclass(frozen=True)
class Services:
    """What routes stand on."""

    settings: ServerSettings


def services_of(request: Request) -> Services:
    """Those of the application that was asked."""
    found: Services = request.app.state.services
    return found


UsesServices = Annotated[Services, Depends(services_of)]


def create_app(settings: ServerSettings) -> FastAPI:
    """The whole server as an ASGI application."""
    app = FastAPI(title="rlrun", version=__version__)
    app.state.services = Services(settings)
    return app
