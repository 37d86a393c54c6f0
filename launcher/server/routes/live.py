"""Streams over WebSocket: the events of a run, and what changes about all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from anyio import create_task_group, move_on_after
from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect

from launcher.core.problems import Problems
from launcher.runs.folder import Folder
from launcher.server.live import BEGUN_ANEW, TRY_AGAIN, BegunAnew, Overtaken
from launcher.server.problems import document, status_of
from launcher.server.services import Services

router = APIRouter(tags=["live"])
CLOSE_S = 2.0  # time limit of the closing handshake


@router.websocket("/api/jobs/{uuid}/stream")
async def stream_run(socket: WebSocket, uuid: str, after: Annotated[int, Query(ge=-1, lt=2**53)] = -1) -> None:
    """Each line of the run's event log whose `seq` is above `after`, in order and once, then as it grows."""
    services: Services = socket.app.state.services

    def find() -> Folder:
        folder = services.jobs.get(uuid).folder
        folder.check()
        return folder

    try:
        folder = await asyncio.to_thread(find)
    except Problems as error:
        await socket.send_denial_response(document(status_of(error.problems), error.problems))
        return
    await _serve(socket, partial(services.live.send_log, folder.events, after, socket.send_text))


@router.websocket("/api/stream")
async def stream_jobs(socket: WebSocket) -> None:
    """What changes about any job: its `uuid` and the fields that are new."""
    services: Services = socket.app.state.services
    await _serve(socket, partial(services.live.send_changes, services.jobs, socket.send_text))


async def _serve(socket: WebSocket, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work`, which sends, until the client leaves or is too slow; messages from it are ignored."""
    subprotocols = socket.scope.get("subprotocols") or [None]
    await socket.accept(subprotocol=subprotocols[0])
    async with create_task_group() as group:

        async def listen() -> None:
            with suppress(WebSocketDisconnect, RuntimeError):
                while (await socket.receive())["type"] != "websocket.disconnect":
                    pass
            group.cancel_scope.cancel()

        group.start_soon(listen)
        with suppress(WebSocketDisconnect, RuntimeError, OSError):  # the connection broke while sending
            try:
                await work()
            except Overtaken:
                await _close(socket, TRY_AGAIN, "too slow; come back with after=SEQ")
            except BegunAnew:
                await _close(socket, BEGUN_ANEW, "the log was begun anew")
        group.cancel_scope.cancel()


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with move_on_after(CLOSE_S):
        await socket.close(code, reason)
