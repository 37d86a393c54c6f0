"""Checks of every request before the application sees it: origin, permission, size and time. Pure ASGI, for HTTP and
WebSocket alike."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from launcher.core.problems import Problem
from launcher.core.redaction import is_secret_name
from launcher.server.access import AccessTokens, Holder, Scope
from launcher.server.problems import document

READS = ("GET", "HEAD", "OPTIONS")
GUARDED = ("/api", "/metrics")
"""Paths that need a token; the page and the description of the API do not."""
SUBPROTOCOL = "bearer."
"""Prefix of the WebSocket subprotocol that carries the token, as a browser cannot set headers there."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Sent with every response."""
REFUSED = (400, 401, 403, 408, 413, 414, 415, 421, 503)
"""The statuses of all `Refusal`s."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits on requests."""

    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 128 * 2**20
    """Bodies in memory, of all open requests together."""
    body_s: float = 20.0
    """Seconds in which a body must be complete."""
    query_bytes: int = 8 * 2**10
    requests: int = 200
    """Open at a time."""
    sockets: int = 600
    """WebSockets open at a time."""


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused."""

    status: int
    where: str
    got: str
    fix: str = ""

    async def send(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await receive()
            await send(
                {"type": "websocket.close", "code": 1013 if self.status == 503 else 1008, "reason": self.got[:100]}
            )
            return
        headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(self.status, {})
        problem = Problem(self.where, self.got, self.fix, "not-permitted")
        await document(self.status, [problem], {**headers, "connection": "close"})(connection, receive, send)


class Guard:
    """ASGI middleware that refuses requests before they reach the application."""

    def __init__(
        self, app: ASGIApp, tokens: AccessTokens, names: frozenset[str], limits: RequestLimits | None = None
    ) -> None:
        self._app, self._tokens, self._names, self._limits = app, tokens, names, limits or RequestLimits()
        self._open = {"http": 0, "websocket": 0}
        self._held_bytes = 0

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        kind = connection["type"]
        if kind not in self._open:
            return await self._app(connection, receive, send)
        send = _with_headers(connection, send)
        refusal = self._refusal(connection)
        if refusal:
            return await refusal.send(connection, receive, send)
        self._open[kind] += 1
        try:
            await self._call_app(connection, receive, send)
        finally:
            self._open[kind] -= 1
        return None

    async def _call_app(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket" or connection["method"] in READS:
            return await self._app(connection, receive, send)
        held_bytes = 0

        def hold(count: int) -> bool:
            nonlocal held_bytes
            held_bytes, self._held_bytes = held_bytes + count, self._held_bytes + count
            return held_bytes <= self._limits.body_bytes and self._held_bytes <= self._limits.bodies_bytes

        try:
            body = await _read_body(receive, hold, self._limits.body_s)
            if isinstance(body, Refusal):
                return await body.send(connection, receive, send)
            return await self._app(connection, _replay_body(body, receive), send)
        finally:
            self._held_bytes -= held_bytes

    # ---- what is refused

    def _refusal(self, connection: Connection) -> Refusal | None:
        return next(filter(None, self._run_checks(connection)), None)

    def _run_checks(self, connection: Connection) -> Iterator[Refusal | None]:
        kind, headers = connection["type"], connection["headers"]
        yield self._check_host(_values(headers, b"host"))
        yield self._check_origin(headers)
        yield self._check_query(connection["query_string"])
        guarded = connection["path"].startswith(GUARDED) or kind == "websocket"
        if guarded or connection["method"] not in READS:
            yield self._check_token(connection)
        if kind == "http" and connection["method"] not in READS:
            yield self._check_body(headers)
        limit = self._limits.requests if kind == "http" else self._limits.sockets
        if self._open[kind] >= limit:
            yield Refusal(503, "connections", f"{limit} are open", "try again in a second")

    def _check_host(self, hosts: list[str]) -> Refusal | None:
        """Against DNS rebinding, where another name resolves to this server. An IP address cannot be rebound."""
        name = _name_of(hosts[0]) if len(hosts) == 1 else ""
        if name in self._names or _is_address(name):
            return None
        return Refusal(421, "Host", "is no name of this server", f"use {' or '.join(sorted(self._names))}")

    def _check_origin(self, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
        """Against cross-site requests: browsers send the origin of a script."""
        host, origins = _values(headers, b"host"), _values(headers, b"origin")
        if any(origin.partition("://")[2].lower() != host[0].lower() for origin in origins):
            return Refusal(403, "Origin", "is another place", "open the server's own page")
        if "cross-site" in _values(headers, b"sec-fetch-site") and "navigate" not in _values(
            headers, b"sec-fetch-mode"
        ):
            return Refusal(403, "Sec-Fetch-Site", "is another place", "open the server's own page")
        return None

    def _check_query(self, query: bytes) -> Refusal | None:
        """Too long, or with a secret, which a URL would leave in logs and browser histories."""
        if len(query) > self._limits.query_bytes:
            return Refusal(414, "query", f"has {len(query):,} bytes", f"use at most {self._limits.query_bytes:,}")
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
        if any(is_secret_name(name, key=True) for name in names):
            return Refusal(400, "query", "holds a secret", "send the token in the header Authorization: Bearer TOKEN")
        return None

    def _check_token(self, connection: Connection) -> Refusal | None:
        token = _token_of(connection)
        holder = self._tokens.holder(token) if token else None
        if holder is None and not self._tokens.are_wanted and not token:
            holder = Holder("admin")
        if holder is None:
            fix = "send Authorization: Bearer TOKEN; the server printed one when it started"
            return Refusal(401, "Authorization", "has no token that is known here", fix)
        scope = _scope_of(connection)
        if not holder.may(scope):
            return Refusal(403, "Authorization", f"the token may {holder.scope}", f"use one with the scope {scope}")
        connection["who"] = holder.who
        return None

    def _check_body(self, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
        length = _values(headers, b"content-length")
        if length and length[0].isdigit() and int(length[0][:18]) > self._limits.body_bytes:
            return Refusal(413, "body", f"has more than {self._limits.body_bytes:,} bytes", "send it in parts")
        has_body = (length or ["0"])[0] != "0" or bool(_values(headers, b"transfer-encoding"))
        kinds = [kind.partition(";")[0].strip().lower() for kind in _values(headers, b"content-type")]
        if has_body and kinds != ["application/json"]:  # forms of other sites send other types without a preflight
            return Refusal(415, "Content-Type", f"is {kinds[0] if kinds else 'missing'}", "send application/json")
        return None


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def names_of(host: str) -> frozenset[str]:
    """The names that the Host header of requests to a server at `host` may have; IP addresses are always allowed."""
    own_names = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(own_names if _is_address(host) else {*own_names, host.lower()})


def _token_of(connection: Connection) -> str:
    for value in _values(connection["headers"], b"authorization"):
        kind, _, token = value.partition(" ")
        if kind.lower() == "bearer":
            return token.strip()
    subprotocols = connection.get("subprotocols", ())
    return next((name.removeprefix(SUBPROTOCOL) for name in subprotocols if name.startswith(SUBPROTOCOL)), "")


def _scope_of(connection: Connection) -> Scope:
    if connection["path"].startswith("/api/tokens"):
        return "admin"
    return "read" if connection["type"] == "websocket" or connection["method"] in READS else "launch"


# ---- bodies and headers


async def _read_body(receive: Receive, hold: Any, seconds: float) -> bytes | Refusal:
    """The whole body, or a refusal. `hold` counts the bytes of a part and returns whether they fit."""
    parts = list[bytes]()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return Refusal(400, "body", "ended before it was complete")
                parts.append(message.get("body", b""))
                if not hold(len(parts[-1])):
                    return Refusal(413, "body", "is too large, or too much is being read", "send it in parts")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return Refusal(408, "body", f"was not complete after {seconds:g} s", "send it faster, or in parts")


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read, and then later messages."""
    pending = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

    return replay


def _with_headers(connection: Connection, send: Send) -> Send:
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    headers.append((b"cache-control", b"no-store" if connection["path"].startswith("/api") else b"no-cache"))

    async def send_with_headers(message: Message) -> None:
        if message["type"].endswith("http.response.start"):  # also of a refused WebSocket
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers
