"""One HTTP request, as a reward's server is asked: bounded in size, without redirects, its errors in words."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import cache

import httpx2

from launcher.core.problems import error_message
from launcher.rewards.remote import RequestFailed

LONGEST = 64 * 2**20  # bytes of a reply
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # a server that says so may say otherwise in a moment


@cache
def _tls_context() -> ssl.SSLContext:
    """A cached TLS context: reading the system's certificates takes longer than a request."""
    return ssl.create_default_context()


def open_client() -> httpx2.AsyncClient:
    """Without time limits of its own: whoever uses it has one for each request."""
    return httpx2.AsyncClient(verify=_tls_context(), timeout=None, limits=httpx2.Limits())


async def post(client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The reply's body. Redirects are refused, as they would send the token to another host. Raises `RequestFailed`."""
    try:
        async with client.stream("POST", url, content=body, headers=headers) as reply:
            if not reply.is_success:
                text, wait = f"{reply.status_code} {reply.reason_phrase}", reply.headers.get("Retry-After", "")
                wait_s = float(wait) if wait.isdigit() else 0.0  # a date is ignored
                raise RequestFailed(f"the server said {text}", reply.status_code in AGAIN, wait_s)
            received = bytearray()
            async for piece in reply.aiter_bytes():
                received += piece
                if len(received) > LONGEST:
                    raise RequestFailed(f"the server's reply is longer than {LONGEST} bytes")
            return bytes(received)
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise RequestFailed(f"the server cannot be reached: {_reason(error)}", passing=True) from error
    except (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, ValueError):
        # the text of these holds the token, or the header, that is at fault
        raise RequestFailed("the request cannot be sent: its address or a header is not valid HTTP") from None
    except httpx2.RequestError as error:
        raise RequestFailed(f"the server broke off: {_reason(error)}", passing=True) from error


def _reason(error: BaseException) -> str:
    """What the system said, at the beginning of a chain of errors."""
    while cause := error.exceptions[-1] if isinstance(error, ExceptionGroup) else error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and str(error.strerror).startswith("Connect call failed"):
        return os.strerror(error.errno or 0).lower()
    return error_message(error if isinstance(error, Exception) else RuntimeError(str(error)))
