"""A remote reward server: answers are sent as JSON, and their scores are returned.

POST url  {"answers": [{"response", "ground_truth", "data_source", "extra_info", "prompt"}, ...]}
->        {"scores": [0.5, 1, ...]}, one number for each answer, in order; null for one that it cannot score

Requests are limited in time and size, and sent without redirects.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.redaction import is_secret_name
from launcher.core.settings import AtLeastOne, Count, NonNegative, Positive, settings
from launcher.spec.reward import Answer, DetailedReward, Scores

if TYPE_CHECKING:
    import httpx2

SENT = ("response", "ground_truth", "data_source", "extra_info", "prompt")  # fields of an answer
KEPT = "would be kept with the run"
LONGEST = 64 * 2**20  # bytes of a reply
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # statuses after which a retry may succeed
MOST_WAIT_S = 30.0
TRIAL_S = 5.0
CONNECTS_S = 2.0  # time limit of the check that the server can be reached


@settings
class Remote(DetailedReward):
    """Scores by an HTTP server. Answers that it does not score in time have no score; the run goes on."""

    cheap = False

    url: str
    """Address of the server, http or https."""
    token_env: str | None = None
    """Name of the environment variable with a bearer token; the token itself is never stored with a run."""
    kind: Literal["rule", "model"] = "model"
    """Whether its scores are reported with those of rules or of models."""
    batch_size: AtLeastOne = 32
    """Answers in one request."""
    max_parallel: AtLeastOne = 8
    """Concurrent requests, per training process."""
    timeout_s: Positive = 60.0
    """Time limit of a request, in seconds, until the whole reply has arrived."""
    retries: Count = 3
    """Times a request is repeated where the server is busy or unreachable."""
    backoff_s: NonNegative = 1.0
    """Seconds before the first retry; doubles for each further one."""

    @property
    def learned(self) -> bool:  # type: ignore[override]  # the base class names a constant
        return self.kind == "model"

    def problems(self) -> list[Problem]:
        found, parts = [], urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            found.append(Problem("reward.url", f"got {short_repr(self.url)}", "expected http://host:port/path"))
        if parts.username or parts.password:
            found.append(Problem("reward.url", f"holds a name or password, which {KEPT}", "use token_env"))
        secrets = [name for name, value in parse_qsl(parts.query) if value and is_secret_name(name, key=True)]
        found += [Problem("reward.url", f"{name} {KEPT}", "use token_env") for name in secrets]
        if self.token_env and not self._token:
            found.append(Problem("reward.token_env", f"the environment has no {self.token_env}", "set it to the token"))
        if not (self._token.isascii() and self._token.isprintable()):
            got = f"{self.token_env} holds characters that a header cannot carry"
            found.append(Problem("reward.token_env", got, "use printable ASCII characters"))
        return found

    def missing_requirements(self) -> list[Problem]:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((host, port), CONNECTS_S).close()
        except OSError as error:
            got = f"no server answers at {host}:{port}, {error_message(error)}"
            return [Problem("reward.url", got, "use a running server", "not-reachable")]
        return []

    def fix_of(self, fault: str) -> str:
        if (variable := self.proxy()[0]) and "reached" in fault:
            return f"{variable} takes what goes to it; set no_proxy={urlsplit(self.url).hostname}"
        if "longer than" in fault:
            return f"use reward.timeout_s={10 * self.timeout_s:g}, or a faster server"
        return 'the server at reward.url has to reply {"scores": [...]}, one score for each answer'

    def on_trial(self) -> Self:
        return replace(self, timeout_s=min(self.timeout_s, TRIAL_S), retries=0)

    def proxy(self) -> tuple[str, str]:
        """The environment variable that names an HTTP proxy for the server, and the proxy's address; both "" where none
        is used. Proxies of other protocols, such as SOCKS, are ignored."""
        parts, proxies = urlsplit(self.url), getproxies()
        if any(map(proxy_bypass, (parts.hostname or "", parts.netloc.rpartition("@")[2]))):  # with the port, too
            return "", ""
        for name in (parts.scheme, "all"):
            address = proxies.get(name, "")
            address = address if not address or "://" in address else f"http://{address}"
            if address.lower().startswith(("http://", "https://")):
                return f"{name}_proxy", address
        return "", ""

    @property
    def _token(self) -> str:
        return os.environ.get(self.token_env, "").strip() if self.token_env else ""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Scores [N] of N answers; after `max_parallel` consecutive failed requests the others are not sent."""
        batches = [answers[start : start + self.batch_size] for start in range(0, len(answers), self.batch_size)]
        results = asyncio.run(self._score_all(batches))
        total = [score for scores, _ in results for score in scores]
        return Scores(total, {}, [fault for scores, fault in results for _ in scores])

    async def _score_all(self, batches: Sequence[Sequence[Answer]]) -> list[tuple[list[Any], str]]:
        """For each batch its scores and "", or NaNs and why there are none."""
        import httpx2  # noqa: PLC0415  late: it is needed where a server is asked

        permits, failed_in_row = asyncio.Semaphore(self.max_parallel), 0

        async def score_batch(batch: Sequence[Answer]) -> tuple[list[Any], str]:
            nonlocal failed_in_row
            nodes = [{name: value for name, value in answer.node.items() if name in SENT} for answer in batch]
            async with permits:
                if failed_in_row >= self.max_parallel:
                    return [math.nan] * len(batch), f"not asked: {self.max_parallel} requests before it failed"
                try:
                    body = json.dumps({"answers": nodes}, default=str).encode()
                    scores = _read_scores(await self._post_with_retries(client, body), len(batch))
                except RequestFailed as error:
                    failed_in_row += 1
                    return [math.nan] * len(batch), str(error)
                failed_in_row = 0
                return scores, ""

        proxy = self.proxy()[1] or None
        async with httpx2.AsyncClient(verify=_tls_context(), timeout=None, trust_env=False, proxy=proxy,
                                      limits=httpx2.Limits()) as client:  # fmt: skip
            return await asyncio.gather(*map(score_batch, batches))

    async def _post_with_retries(self, client: httpx2.AsyncClient, body: bytes) -> bytes:
        """The reply's body, with retries where they may help. Raises `RequestFailed`."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self.token_env else {}
        for attempt in range(self.retries + 1):
            try:
                async with asyncio.timeout(self.timeout_s):
                    return await _post(client, self.url, headers, body)
            except TimeoutError:
                failure = RequestFailed(f"the server took longer than {self.timeout_s:g} s", passing=True)
            except RequestFailed as error:
                failure = error
            if not failure.passing or attempt == self.retries:
                break
            await asyncio.sleep(min(max(self.backoff_s * 2**attempt, failure.wait_s), MOST_WAIT_S))
        raise failure


class RequestFailed(Exception):
    """A failed request; `passing` if a retry may succeed, at the earliest after `wait_s` seconds."""

    def __init__(self, text: str, passing: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.passing, self.wait_s = passing, wait_s


@cache
def _tls_context() -> ssl.SSLContext:
    """A cached TLS context: reading the system's certificates takes longer than a request."""
    return ssl.create_default_context()


async def _post(client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The reply's body. Redirects are refused, as they would send the token to another host. Raises `RequestFailed`."""
    import httpx2  # noqa: PLC0415

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


def _read_scores(reply: bytes, count: int) -> list[Any]:
    """The `count` scores of a reply, unchecked. Raises `RequestFailed` for any other reply."""
    try:
        node = parse_json(reply)
    except ValueError as error:
        raise RequestFailed(f"the server's reply is not JSON: {short_repr(reply[:1000])}") from error
    scores = node.get("scores") if isinstance(node, dict) else node
    if not isinstance(scores, list):
        raise RequestFailed(f'the server\'s reply has no list "scores": {short_repr(reply[:1000])}')
    if len(scores) != count:
        raise RequestFailed(f"the server gave {len(scores)} scores for {count} answers; expected one for each")
    return scores


def _root_message(error: BaseException) -> str:
    """The message of the first error in a chain, which is the system's."""
    while cause := error.exceptions[-1] if isinstance(error, ExceptionGroup) else error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, OSError) and str(error.strerror).startswith("Connect call failed"):
        return os.strerror(error.errno or 0).lower()
    return error_message(error if isinstance(error, Exception) else RuntimeError(str(error)))
