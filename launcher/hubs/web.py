"""One GET of a file's bytes, from where it was left off. It follows redirects itself, and trusts none of them.

Credentials go to the hub's own host only. From a public host it never goes on to a private address, from https never
to http, and to nothing but these two. It knows nothing of files, hashes or retries.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from launcher.core.problems import error_message, short_repr
from launcher.hubs.repo import Address, Patience

MAX_HOPS = 8
LONGEST_WAIT_S = 60.0
CHUNK = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Fault(Exception):
    """This try failed; another may not."""

    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s
        """The server asked not to be asked again before that."""


class OutOfRange(Fault):
    """The server knows no such byte (416): what is here is not the beginning of what is there."""


class Refused(Exception):
    """The server, or we, will not do it however often it is tried."""


class Session(requests.Session):
    """For one thread. Proxies come from the environment; ~/.netrc is not asked, for a hub's token is in the headers."""

    def __init__(self) -> None:
        super().__init__()
        self.only_public = False
        """Talk to no address of a private network, whatever name led there."""
        self.auth = lambda request: request
        for scheme in ("https://", "http://"):
            self.mount(scheme, _Adapter(self))


class _Adapter(HTTPAdapter):
    """Trusts what the system trusts (and SSL_CERT_FILE names) besides certifi's list, as the hubs' clients do. It
    looks at whom it is connected to before it says a word: a name may stand for another address than a moment ago."""

    def __init__(self, session: Session) -> None:
        self._session = session
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, ssl_context=ssl.create_default_context(), **more)
        session = self._session

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                _check_peer(self, session)

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                _check_peer(self, session)

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        self.poolmanager.pool_classes_by_scheme = {
            "http": PlainPool,
            "https": SecurePool,
        }  # a proxy has pools of its own


def _check_peer(connection: HTTPConnection, session: Session) -> None:
    peer = connection.sock.getpeername()[0] if connection.sock else None
    if session.only_public and not is_public(peer):
        connection.close()
        raise Refused(f"{connection.host} turned out to be {peer}, an address of a private network")


class Opened:
    """A server's answer, before its bytes are read."""

    def __init__(self, response: requests.Response, first: requests.Response) -> None:
        self._response = response
        self.host = host_of(urlsplit(response.url))
        self.hub_headers = first.headers
        """What the hub itself said of the file, before it sent us elsewhere."""
        self.whole = response.status_code == 200
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            raise Fault(f"{self.host} sends it as {short_repr(encoding)} though it was asked for plain bytes")

    def begins_at(self) -> int:
        return 0 if self.whole else int(self._content_range()[1])

    def size(self) -> int | None:
        """Bytes of the whole file, where the server says so."""
        if self.whole:
            length = self._response.headers.get("Content-Length", "")
            return int(length) if length.isdigit() else None
        total = self._content_range()[2]
        return None if total == "*" else int(total)

    def _content_range(self) -> re.Match[str]:
        value = self._response.headers.get("Content-Range", "")
        if not (match := _CONTENT_RANGE.fullmatch(value)):
            raise Fault(f"{self.host} sends a part and names it {short_repr(value)}")
        return match

    def read(self) -> bytes:
        """What has come, at most `CHUNK`; nothing at the end. Raises `Fault` when the connection breaks."""
        try:
            data: bytes = self._response.raw.read1(CHUNK, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Fault(f"{self.host} {_broken(error)}") from error
        return data or b""

    def abort(self) -> None:
        """Wake a thread that waits for bytes; it finds the connection cut."""
        with suppress(ValueError, RuntimeError, OSError):  # it has ended by itself
            self._response.raw.shutdown()


@contextmanager
def opened(web: Session, address: Address, start: int, patience: Patience) -> Iterator[Opened]:
    """The bytes of `address` from `start` on. Raises `Fault` or `Refused`."""
    hub = urlsplit(address.url)
    url, first = address.url, None
    web.only_public = is_public(hub.hostname)
    for hop in range(MAX_HOPS):
        response = _asked(web, url, hub, address, start, patience)
        first = first or response
        with response:
            location = response.headers.get("Location")
            if response.status_code in (301, 302, 303, 307, 308) and location:
                url = _next(url, location, web.only_public)
                continue
            _check_status(response, hop, first)
            yield Opened(response, first)
            return
    raise Refused(f"{host_of(hub)} sends us on more than {MAX_HOPS} times")


def _asked(
    web: Session, url: str, hub: SplitResult, address: Address, start: int, patience: Patience
) -> requests.Response:
    there = urlsplit(url)
    headers = {name: value for name, value in address.headers.items() if _origin(there) == _origin(hub)}
    headers["Accept-Encoding"] = "identity"
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return web.get(
            url, headers=headers, stream=True, allow_redirects=False, timeout=(patience.connect_s, patience.read_s)
        )
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise Fault(f"{host_of(there)} {_broken(error)}") from error


def _next(url: str, location: str, only_public: bool) -> str:
    """Where a redirect leads, or `Refused`."""
    target = urljoin(url, location)
    before, after = urlsplit(url), urlsplit(target)
    if after.scheme not in ("http", "https") or not after.hostname:
        raise Refused(f"{host_of(before)} sends us to {short_repr(after.scheme)}, which is neither http nor https")
    if before.scheme == "https" and after.scheme == "http":
        raise Refused(f"{host_of(before)} sends us from https to http at {host_of(after)}")
    if only_public and not is_public(after.hostname):
        raise Refused(f"{host_of(before)} sends us to {host_of(after)}, an address of a private network")
    return target


def _check_status(response: requests.Response, hop: int, first: requests.Response) -> None:
    status, host = response.status_code, host_of(urlsplit(response.url))
    if status in (200, 206):
        return
    if status == 416:
        raise OutOfRange(f"{host} knows no such byte (416)")
    if status in (408, 425, 429) or status >= 500:
        after = response.headers.get("Retry-After", "")
        raise Fault(f"{host} answers {status}", min(float(after), LONGEST_WAIT_S) if after.isdigit() else 0.0)
    if hop and status in (400, 401, 403, 404, 410):  # a signed link that has run out: the hub makes a new one
        raise Fault(f"{host} refuses the link that the hub made ({status})")
    told = first.headers.get("X-Error-Message") or response.reason
    raise Refused(f"{host} answers {status} ({short_repr(told)})")


def _broken(error: Exception) -> str:
    """What happened to a connection, in our words where a library's would be long."""
    text = str(error)
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError | TimeoutError) or "timed out" in text:
        return "sends nothing any more"
    if isinstance(error, requests.ConnectionError):
        inner = error.args[0] if error.args else error
        reason = inner.reason if isinstance(inner, urllib3.exceptions.MaxRetryError) else inner
        what = "cannot be trusted" if isinstance(error, requests.exceptions.SSLError) else "cannot be reached"
        return f"{what}: {error_message(reason) if isinstance(reason, Exception) else reason}"
    return "cut the connection"


def _origin(address: SplitResult) -> tuple[str, str | None, int | None]:
    return address.scheme, address.hostname, address.port


def host_of(address: SplitResult) -> str:
    """Host and port, for people: a signed link has secrets in the rest."""
    return f"{address.hostname}:{address.port}" if address.port else str(address.hostname)


def is_public(host: str | None) -> bool:
    """Whether every address of `host` belongs to the internet. A name that only a proxy can look up counts as such."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return True
    for text in found:
        address = ip_address(text)
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if not address.is_global:
            return False
    return True
