"""The requests to a reward's server: bounded in time and size, without redirects, their errors in words."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import httpx2

from launcher.core.problems import error_message
from launcher.rewards.remote import Remote, RequestFailed
from launcher.spec.reward import Answer

LONGEST = 64 * 2**20  # bytes of a reply
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # a server that says so may say otherwise in a moment
MOST_WAIT_S = 30.0


@cache
def _tls_context() -> ssl.SSLContext:
    """A cached TLS context: reading the system's certificates takes longer than a request."""
    return ssl.create_default_context()


def score_all(remote: Remote, batches: Sequence[Sequence[Answer]]) -> list[tuple[list[Any], str]]:
    """Of each batch the scores, and why it has none."""
    return asyncio.run(_score_all(remote, batches))


async def _score_all(remote: Remote, batches: Sequence[Sequence[Answer]]) -> list[tuple[list[Any], str]]:
    places, failed = asyncio.Semaphore(remote.max_parallel), 0

    async def score_batch(batch: Sequence[Answer]) -> tuple[list[Any], str]:
        nonlocal failed
        async with places:
            if failed >= remote.max_parallel:
                return [math.nan] * len(batch), f"not asked: {remote.max_parallel} requests before it failed"
            try:
                scores = remote.read_scores(await _post_again(client, remote, remote.body(batch)), len(batch))
            except RequestFailed as error:
                failed += 1
                return [math.nan] * len(batch), str(error)
            failed = 0
            return scores, ""

    async with httpx2.AsyncClient(
        verify=_tls_context(), timeout=None, limits=httpx2.Limits(), trust_env=False, proxy=remote.proxy()[1] or None
    ) as client:
        return await asyncio.gather(*map(score_batch, batches))


async def _post_again(client: httpx2.AsyncClient, remote: Remote, body: bytes) -> bytes:
    """The reply, asked for again where the server may answer then. Raises `RequestFailed`."""
    for again in range(remote.retries + 1):
        try:
            async with asyncio.timeout(remote.timeout_s):
                return await _post(client, remote.url, remote.all_headers(), body)
        except TimeoutError:
            failure = RequestFailed(f"the server took longer than {remote.timeout_s:g} s", passing=True)
        except RequestFailed as error:
            failure = error
        if not failure.passing or again == remote.retries:
            break
        await asyncio.sleep(min(max(remote.backoff_s * 2**again, failure.wait_s), MOST_WAIT_S))
    raise failure


async def _post(client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
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
