"""Checks of every request before the application sees it: origin, permission, size and time. Pure ASGI, for HTTP and
WebSocket alike."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from launcher.core.problems import Problem
from launcher.core.redaction import is_secret_name
from launcher.server.access import AccessTokens, Scope, includes
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


class Refusal(Exception):
    """Why a request is refused."""

    def __init__(self, status: int, where: str, got: str, fix: str = "") -> None:
        super().__init__(got)
        self.status, self.problem = status, Problem(where, got, fix, "not-permitted")

    async def send(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await receive()
            code = 1013 if self.status == 503 else 1008
            return await send({"type": "websocket.close", "code": code, "reason": self.problem.got[:100]})
        headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(self.status, {})
        response = document(self.status, [self.problem], {**headers, "connection": "close"})
        return await response(connection, receive, send)


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
        send, body = _with_headers(connection, send), list[bytes]()
        self._open[kind] += 1
        try:
            self._check(connection)
            if _changes(connection):
                await self._read_body(receive, body)
                body[:] = [b"".join(body)]
                receive = _replay_body(body[0], receive)
        except Refusal as refusal:
            return await refusal.send(connection, receive, send)
        else:
            return await self._app(connection, receive, send)
        finally:
            self._open[kind] -= 1
            self._held_bytes -= sum(map(len, body))

    async def _read_body(self, receive: Receive, parts: list[bytes]) -> None:
        """Read the whole body into `parts`. Raises `Refusal`."""
        try:
            async with asyncio.timeout(self._limits.body_s):
                more, size = True, 0
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refusal(400, "body", "ended before it was complete")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    self._held_bytes += len(parts[-1])
                    if size > self._limits.body_bytes or self._held_bytes > self._limits.bodies_bytes:
                        raise Refusal(413, "body", "is too large, or too much is being read", "send it in parts")
        except TimeoutError:
            got = f"was not complete after {self._limits.body_s:g} s"
            raise Refusal(408, "body", got, "send it faster, or in parts") from None

    # ---- what is refused

    def _check(self, connection: Connection) -> None:
        """Raises `Refusal`."""
        kind, headers = connection["type"], Headers(scope=connection)
        self._check_host(headers.getlist("host"))
        self._check_origin(headers)
        self._check_query(connection["query_string"])
        if connection["path"].startswith(GUARDED) or kind == "websocket" or _changes(connection):
            self._check_token(connection, headers)
        if _changes(connection):
            self._check_body(headers)
        limit = self._limits.requests if kind == "http" else self._limits.sockets
        if self._open[kind] > limit:
            raise Refusal(503, "connections", f"{limit} are open", "try again in a second")

    def _check_host(self, hosts: list[str]) -> None:
        """Against DNS rebinding, where another name resolves to this server. An IP address cannot be rebound."""
        name = _name_of(hosts[0]) if len(hosts) == 1 else ""
        if name not in self._names and not _is_address(name):
            raise Refusal(421, "Host", "is no name of this server", f"use {' or '.join(sorted(self._names))}")

    def _check_origin(self, headers: Headers) -> None:
        """Against cross-site requests: browsers send the origin of a script."""
        host, fix = headers["host"].lower(), "open the server's own page"
        if any(origin.partition("://")[2].lower() != host for origin in headers.getlist("origin")):
            raise Refusal(403, "Origin", "is another place", fix)
        is_cross_site = "cross-site" in headers.getlist("sec-fetch-site")
        if is_cross_site and "navigate" not in headers.getlist("sec-fetch-mode"):
            raise Refusal(403, "Sec-Fetch-Site", "is another place", fix)

    def _check_query(self, query: bytes) -> None:
        """Too long, or with a secret, which a URL would leave in logs and browser histories."""
        if len(query) > self._limits.query_bytes:
            raise Refusal(414, "query", f"has {len(query):,} bytes", f"use at most {self._limits.query_bytes:,}")
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
        if any(is_secret_name(name, key=True) for name in names):
            raise Refusal(400, "query", "holds a secret", "send the token in the header Authorization: Bearer TOKEN")

    def _check_token(self, connection: Connection, headers: Headers) -> None:
        token = _token_of(headers.getlist("authorization"), connection.get("subprotocols", ()))
        scope = self._tokens.scope_of(token) if token or self._tokens.are_wanted else "admin"
        if scope is None:
            fix = "send Authorization: Bearer TOKEN, as the server printed it, or no token where it printed none"
            raise Refusal(401, "Authorization", "has no token that is known here", fix)
        wanted: Scope = "launch" if _changes(connection) else "read"
        if not includes(scope, wanted):
            raise Refusal(403, "Authorization", f"the token may {scope}", f"use one with the scope {wanted}")

    def _check_body(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:18]) > self._limits.body_bytes:
            raise Refusal(413, "body", f"has more than {self._limits.body_bytes:,} bytes", "send it in parts")
        has_body = length != "0" or bool(headers.get("transfer-encoding"))
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
        if has_body and kinds != ["application/json"]:  # forms of other sites send other types without a preflight
            raise Refusal(415, "Content-Type", f"is {kinds[0] if kinds else 'missing'}", "send application/json")


def _changes(connection: Connection) -> bool:
    """Whether it is a request with a body, to do more than read."""
    return connection["type"] == "http" and connection["method"] not in READS


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


def _token_of(authorizations: Iterable[str], subprotocols: Iterable[str]) -> str:
    bearers = [value.partition(" ")[2].strip() for value in authorizations if value.lower().startswith("bearer ")]
    bearers += [name.removeprefix(SUBPROTOCOL) for name in subprotocols if name.startswith(SUBPROTOCOL)]
    return bearers[0] if bearers else ""


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
