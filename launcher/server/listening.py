"""The sockets of a server, and the limits of a connection before its request is complete."""

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

HEAD_S = 10.0  # in which the request line and headers must be complete
CONNECTIONS = 1_000
UNREAD_S, UNREAD_BYTES = 30.0, 2**18  # limits of what the kernel buffers for a client that does not read
MESSAGE_BYTES = 2**16  # of a WebSocket message from a client


class BoundedProtocol(H11Protocol):
    """Closes connections whose request line and headers take longer than HEAD_S, and those beyond CONNECTIONS."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
        self._restart_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def _restart_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """A listening socket for each port; 0 takes a free one. Raises `Problems` where a port is in use."""
    sockets = list[socket.socket]()
    for port in ports:
        try:
            kind = socket.AF_INET6 if ":" in host else socket.AF_INET
            sockets.append(socket.create_server((host, port), family=kind, backlog=512))
        except OSError as error:
            got = f"port {port} of {host} cannot be taken: {error_message(error)}"
            raise Problems(Problem("--port", got, "use another, or --port 0 for a free one", "in-use")) from error
        # accepted connections inherit these: send at once, and buffer little for a client that does not read
        sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux only
            sockets[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1e3))
    return sockets


def run(app: FastAPI, sockets: list[socket.socket], began: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. `began` is called once the server accepts requests."""
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="websockets-sansio", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, timeout_keep_alive=5, timeout_graceful_shutdown=3, ws_max_size=MESSAGE_BYTES,
        ws_max_queue=8, ws_per_message_deflate=False, h11_max_incomplete_event_size=2**15,
    )  # fmt: skip

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            gc.collect()
            gc.freeze()  # a full collection over all loaded modules would delay a request by 80 ms
            began()

    Server(config).run(sockets)
