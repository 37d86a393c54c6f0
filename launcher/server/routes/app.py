"""The application: its parts, and the routes that use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from anyio import to_thread
from fastapi import FastAPI

from launcher import __version__
from launcher.server.database import Database
from launcher.server.ingest import Ingest, folder_for
from launcher.server.jobs import Jobs
from launcher.server.launching import Launching
from launcher.server.problems import add_handlers
from launcher.server.routes import (
    answers,
    curves,
    ingest,
    jobs,
    launch,
    live,
    models,
    page,
    prometheus,
    records,
    schema,
)
from launcher.server.services import ServerSettings, Services

ROUTES = (jobs, launch, models, schema, curves, answers, records, live, prometheus, ingest, page)
"""Modules with a `router`, in the order in which they are asked."""


def create_app(settings: ServerSettings) -> FastAPI:
    """The whole server as an ASGI application. Raises `Problems` where its database cannot be opened."""
    settings.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(settings.database, settings.root)
    registry = Jobs(settings.root, settings.also, database)
    services = Services(settings, database, registry, Launching(registry), Ingest(partial(folder_for, registry)))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(lambda: services.jobs.start(reindex=settings.reindex))
        yield
        await to_thread.run_sync(services.ingest.close)
        await to_thread.run_sync(services.jobs.stop)
        database.close()

    app = FastAPI(title="rlrun", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services = services
    add_handlers(app)
    for module in ROUTES:
        app.include_router(module.router)
    return app
