"""The sockets of a server, and what a connection may cost before it has asked for anything."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Sequence

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from launcher.core.problems import Problem, Problems, error_message

HEAD_S = 10.0  # in which a request's first lines must be complete
CONNECTIONS = 1_000
UNREAD_S, UNREAD_BYTES = 30.0, 2**18  # that the system holds for a client that does not read
MESSAGE_BYTES = 2**16  # of a WebSocket message that a client sends


class BoundedProtocol(H11Protocol):
    """Leaves a client that does not finish its request line and headers, and one too many."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_S, self._leave)

    def _leave(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """A socket for each port; 0 takes a free one. Raises `Problems` where one is taken."""
    found = list[socket.socket]()
    for port in ports:
        try:
            kind = socket.AF_INET6 if ":" in host else socket.AF_INET
            found.append(socket.create_server((host, port), family=kind, backlog=512))
        except OSError as error:
            got = f"port {port} of {host} cannot be taken: {error_message(error)}"
            raise Problems(Problem("--port", got, "use another, or --port 0 for a free one", "in-use")) from error
        # a connection that it takes sends at once, and holds little for a client that does not read, and not for long
        found[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux
            found[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1e3))
    return found


def run(app: FastAPI, sockets: list[socket.socket], began: Callable[[], None]) -> None:
    """Answer until SIGINT or SIGTERM. `began` is called once requests are answered."""
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="websockets-sansio", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, timeout_keep_alive=5, timeout_graceful_shutdown=3, ws_max_size=MESSAGE_BYTES,
        ws_max_queue=8, ws_per_message_deflate=False, h11_max_incomplete_event_size=2**15,
    )  # fmt: skip

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.collect()
            gc.freeze()  # a look at all that was loaded would hold up a request for 80 ms
            began()

    Server(config).run(sockets)
