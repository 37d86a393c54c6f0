"""The events of a run over WebSocket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

from anyio import CancelScope, create_task_group, move_on_after
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
    """Each line of the run's event log whose `seq` is above `after`, in order and once, then as it grows, until the
    client leaves or is too slow. Messages from it are ignored."""
    services: Services = socket.app.state.services
    try:
        folder = await asyncio.to_thread(_checked_folder, services, uuid)
    except Problems as error:
        await socket.send_denial_response(document(status_of(error.problems), error.problems))
        return
    subprotocols = socket.scope.get("subprotocols") or [None]
    await socket.accept(subprotocol=subprotocols[0])
    async with create_task_group() as group:
        group.start_soon(_cancel_once_left, socket, group.cancel_scope)
        with suppress(WebSocketDisconnect, RuntimeError, OSError):  # the connection broke while sending
            try:
                await services.live.send_log(folder.events, after, socket.send_text)
            except Overtaken:
                await _close(socket, TRY_AGAIN, "too slow; come back with after=SEQ")
            except BegunAnew:
                await _close(socket, BEGUN_ANEW, "the log was begun anew")
        group.cancel_scope.cancel()


def _checked_folder(services: Services, uuid: str) -> Folder:
    folder = services.jobs.get(uuid).folder
    folder.check()
    return folder


async def _cancel_once_left(socket: WebSocket, work: CancelScope) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass
    work.cancel()


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with move_on_after(CLOSE_S):
        await socket.close(code, reason)
