"""The ASGI application: its services, its routes, and the guard before all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp

from launcher import __version__
from launcher.server.access import AccessTokens
from launcher.server.database import Database
from launcher.server.ingest import Ingest, folder_for
from launcher.server.jobs import Jobs
from launcher.server.launching import Launching
from launcher.server.problems import MEDIA, add_handlers, declared
from launcher.server.routes import (
    answers,
    curves,
    docs,
    ingest,
    jobs,
    live,
    models,
    page,
    prometheus,
    records,
)
from launcher.server.security import REFUSED, Guard, names_of
from launcher.server.services import ServerSettings, Services

ROUTES = (jobs, models, curves, answers, records, live, prometheus, ingest, docs, page)
"""Modules with a `router`, in matching order."""
ABOUT = """Jobs that post-train language models: each is a run folder, and everything here is what `rlrun` prints.

Errors are problem documents (RFC 9457). Where the server wants a token, send `Authorization: Bearer TOKEN`; its scope
is `read`, `launch` (which is running code on the server's machine) or `admin`, which may do everything."""


class Application(FastAPI):
    """FastAPI inside of a `Guard`, which thereby also handles the responses to faults."""

    def build_middleware_stack(self) -> ASGIApp:
        services: Services = self.state.services
        return Guard(super().build_middleware_stack(), services.tokens, names_of(services.settings.host))

    def openapi(self) -> dict[str, Any]:
        """The schema, with the media type of problem documents and the bearer token."""
        if self.openapi_schema is None:
            schema = super().openapi()
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{}, {"token": []}]
            operations = (operation for path in schema["paths"].values() for operation in path.values())
            for response in (answer for operation in operations for answer in operation["responses"].items()):
                _set_problem_type(*response)
        return super().openapi()


def _set_problem_type(status: str, response: dict[str, Any]) -> None:
    if status >= "400" and "application/json" in response.get("content", {}):
        response["content"] = {MEDIA: response["content"].pop("application/json")}


def create_app(settings: ServerSettings) -> FastAPI:
    """The whole server as an ASGI application. Raises `Problems` where its database cannot be opened."""
    settings.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(settings.database, settings.root)
    registry = Jobs(settings.root, settings.also, database)
    tokens, reports = AccessTokens(settings.tokens), Ingest(partial(folder_for, registry))
    services = Services(settings, database, registry, Launching(registry), tokens, reports)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(lambda: registry.start(reindex=settings.reindex))
        yield
        await to_thread.run_sync(services.ingest.close)
        await to_thread.run_sync(registry.stop)
        database.close()

    app = Application(
        title="rlrun", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None,
        responses=declared(*REFUSED, 507),
    )  # fmt: skip
    app.state.services = services
    add_handlers(app)
    for module in ROUTES:
        app.include_router(module.router)
    app.mount("/page", page.FILES)
    return app
