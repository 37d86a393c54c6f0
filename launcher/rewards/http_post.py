"""Sends the requests to a reward server: limited in time and size, without redirects, with readable errors."""

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
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # statuses after which a retry may succeed
MOST_WAIT_S = 30.0


@cache
def _tls_context() -> ssl.SSLContext:
    """A cached TLS context: reading the system's certificates takes longer than a request."""
    return ssl.create_default_context()


def score_all(remote: Remote, batches: Sequence[Sequence[Answer]]) -> list[tuple[list[Any], str]]:
    """For each batch its scores and "", or NaNs and why there are none."""
    return asyncio.run(_score_all(remote, batches))


async def _score_all(remote: Remote, batches: Sequence[Sequence[Answer]]) -> list[tuple[list[Any], str]]:
    permits, failed_in_row = asyncio.Semaphore(remote.max_parallel), 0

    async def score_batch(batch: Sequence[Answer]) -> tuple[list[Any], str]:
        nonlocal failed_in_row
        async with permits:
            if failed_in_row >= remote.max_parallel:
                return [math.nan] * len(batch), f"not asked: {remote.max_parallel} requests before it failed"
            try:
                scores = remote.read_scores(await _post_with_retries(client, remote, remote.body(batch)), len(batch))
            except RequestFailed as error:
                failed_in_row += 1
                return [math.nan] * len(batch), str(error)
            failed_in_row = 0
            return scores, ""

    async with httpx2.AsyncClient(
        verify=_tls_context(), timeout=None, limits=httpx2.Limits(), trust_env=False, proxy=remote.proxy()[1] or None
    ) as client:
        return await asyncio.gather(*map(score_batch, batches))


async def _post_with_retries(client: httpx2.AsyncClient, remote: Remote, body: bytes) -> bytes:
    """The reply's body, with retries where they may help. Raises `RequestFailed`."""
    for attempt in range(remote.retries + 1):
        try:
            async with asyncio.timeout(remote.timeout_s):
                return await _post(client, remote.url, remote.all_headers(), body)
        except TimeoutError:
            failure = RequestFailed(f"the server took longer than {remote.timeout_s:g} s", passing=True)
        except RequestFailed as error:
            failure = error
        if not failure.passing or attempt == remote.retries:
            break
        await asyncio.sleep(min(max(remote.backoff_s * 2**attempt, failure.wait_s), MOST_WAIT_S))
    raise failure


async def _post(client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The reply's body. Redirects are refused, as they would send the token to another host. Raises `RequestFailed`."""
    try:
        async with client.stream("POST", url, content=body, headers=headers) as reply:
            if not reply.is_success:
                status, retry_after = f"{reply.status_code} {reply.reason_phrase}", reply.headers.get("Retry-After", "")
                wait_s = float(retry_after) if retry_after.isdigit() else 0.0  # the date format is ignored
                raise RequestFailed(f"the server said {status}", reply.status_code in AGAIN, wait_s)
            received = bytearray()
            async for chunk in reply.aiter_bytes():
                received += chunk
                if len(received) > LONGEST:
                    raise RequestFailed(f"the server's reply is longer than {LONGEST} bytes")
            return bytes(received)
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise RequestFailed(f"the server cannot be reached: {_root_message(error)}", passing=True) from error
    except (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, ValueError):
        # their text may hold the token or header
        raise RequestFailed("the request cannot be sent: its address or a header is not valid HTTP") from None
    except httpx2.RequestError as error:
        raise RequestFailed(f"the server broke off: {_root_message(error)}", passing=True) from error


def _root_message(error: BaseException) -> str:
    """The message of the first error in a chain, which is the system's."""
    while cause := error.exceptions[-1] if isinstance(error, ExceptionGroup) else error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and str(error.strerror).startswith("Connect call failed"):
        return os.strerror(error.errno or 0).lower()
    return error_message(error if isinstance(error, Exception) else RuntimeError(str(error)))
