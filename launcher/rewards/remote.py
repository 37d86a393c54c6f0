"""A remote reward server: answers are sent as JSON, and their scores are returned.

POST url  {"answers": [{"response", "ground_truth", "data_source", "extra_info", "prompt"}, ...]}
->        {"scores": [0.5, 1, ...]}, one number for each answer, in order; null for one that it cannot score
"""

from __future__ import annotations

import json
import math
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, field, replace
from email.message import Message
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection, InvalidURL
from typing import IO, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.redaction import is_secret_name
from launcher.core.settings import AtLeastOne, Count, Names, NonNegative, Positive, settings
from launcher.spec.reward import Answer, DetailedReward, Scores

LONGEST = 64 * 2**20  # bytes of a reply
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # a server that says so may say otherwise in a moment
MOST_WAIT_S = 30.0
PRINTABLE = "use printable ASCII characters"
KEPT = "would be kept with the run"
TRIAL_S = 5.0
CONNECTS_S = 2.0  # for a server that runs


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
    send: Names = ("response", "ground_truth", "data_source", "extra_info", "prompt")
    """Fields of an answer that are sent."""
    headers: dict[str, str] = field(default_factory=dict)
    """Additional HTTP headers; use token_env for secrets."""

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
        if not _sendable(self._token):
            got = f"{self.token_env} holds characters that a header cannot carry"
            found.append(Problem("reward.token_env", got, PRINTABLE))
        return [*found, *self._unusable_fields()]

    def _unusable_fields(self) -> list[Problem]:
        """Of an answer, and of the headers."""
        fields = list(Answer.__dataclass_fields__)
        unknown, fix = [name for name in self.send if name not in fields], f"it has {', '.join(fields)}"
        found = [Problem("reward.send", f"an answer has no {name!r}", fix) for name in unknown]
        for name, value in self.headers.items():
            if is_secret_name(name, key=True):
                found.append(Problem("reward.headers", f"{name} {KEPT}", "use token_env"))
            if not _sendable(name + value):
                got = f"{short_repr(name)} holds characters that a header cannot carry"
                found.append(Problem("reward.headers", got, PRINTABLE))
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
        if (proxy := self._proxy()) and "reached" in fault:
            return f"{proxy} takes what goes to it; set no_proxy={urlsplit(self.url).hostname}"
        if "longer than" in fault:
            return f"use reward.timeout_s={10 * self.timeout_s:g}, or a faster server"
        return 'the server at reward.url has to reply {"scores": [...]}, one score for each answer'

    def on_trial(self) -> Self:
        return replace(self, timeout_s=min(self.timeout_s, TRIAL_S), retries=0)

    def _proxy(self) -> str:
        """The environment variable that names a proxy for the server; empty where it is asked directly."""
        parts = urlsplit(self.url)
        if parts.scheme not in urllib.request.getproxies() or urllib.request.proxy_bypass(parts.hostname or ""):
            return ""
        return f"{parts.scheme}_proxy"

    @property
    def _token(self) -> str:
        return os.environ.get(self.token_env, "").strip() if self.token_env else ""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Where `max_parallel` requests in a row come to nothing, the rest is not sent."""
        batches = [answers[start : start + self.batch_size] for start in range(0, len(answers), self.batch_size)]
        failed = 0

        def one(batch: Sequence[Answer]) -> tuple[list[Any], str]:
            nonlocal failed
            if failed >= self.max_parallel:
                return [math.nan] * len(batch), f"not asked: {failed} requests before it failed"
            try:
                scores = self._scores(batch)
            except RequestFailed as error:
                failed += 1
                return [math.nan] * len(batch), str(error)
            failed = 0
            return scores, ""

        with ThreadPoolExecutor(self.max_parallel) as threads:
            results = list(threads.map(one, batches))
        faults = [fault for scores, fault in results for _ in scores]
        return Scores([score for scores, _ in results for score in scores], {}, faults)

    def _scores(self, batch: Sequence[Answer]) -> list[Any]:
        """Raises `RequestFailed`."""
        sent = [{name: value for name, value in asdict(answer).items() if name in self.send} for answer in batch]
        reply = self._reply(json.dumps({"answers": sent}, default=str).encode())
        try:
            node = parse_json(reply)
        except ValueError as error:
            raise RequestFailed(f"the server's reply is not JSON: {short_repr(reply[:1000])}") from error
        scores = node.get("scores") if isinstance(node, dict) else node
        if not isinstance(scores, list):
            raise RequestFailed(f'the server\'s reply has no list "scores": {short_repr(reply[:1000])}')
        if len(scores) != len(batch):
            raise RequestFailed(f"the server gave {len(scores)} scores for {len(batch)} answers; expected one for each")
        return scores

    def _reply(self, body: bytes) -> bytes:
        for again in range(self.retries + 1):
            try:
                return _answered(self._request(body), self.timeout_s)
            except RequestFailed as error:
                if not error.passing or again == self.retries:
                    raise
                time.sleep(min(max(self.backoff_s * 2**again, error.wait_s), MOST_WAIT_S))
        raise AssertionError("the last time returns or raises")

    def _request(self, body: bytes) -> urllib.request.Request:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self.headers}
        if self.token_env:
            headers["Authorization"] = f"Bearer {self._token}"
        return urllib.request.Request(self.url, body, headers, method="POST")


class RequestFailed(Exception):
    """A request that failed; `passing` if a retry after `wait_s` may succeed."""

    def __init__(self, text: str, passing: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.passing, self.wait_s = passing, wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are refused, as they would send the token to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class _Deadline:
    """Closes connections at the deadline, even in the middle of a header."""

    def __init__(self, timeout_s: float) -> None:
        self.over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self.over.is_set():
            self._end()

    def _end(self) -> None:
        self.over.set()
        for connected in self._sockets:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(connected, socket.SHUT_RDWR)  # TLS has nothing more to say, either


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections that a deadline closes."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__(context=_context())
        self.deadline = deadline

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._watched(HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._watched(HTTPSConnection), req, context=_context())

    def _watched(self, kind: type[HTTPConnection]) -> Any:
        watch = self.deadline.watch

        def connect(connection: Any) -> None:
            kind.connect(connection)
            watch(connection.sock)

        return type("Watched", (kind,), {"connect": connect})


@cache
def _context() -> ssl.SSLContext:
    """A cached TLS context: reading the system's certificates takes longer than a request."""
    found = ssl.create_default_context()
    found.set_alpn_protocols(["http/1.1"])
    return found


def _answered(request: urllib.request.Request, timeout_s: float) -> bytes:
    """The reply's body. Raises `RequestFailed`."""
    late = RequestFailed(f"the server took longer than {timeout_s:g} s", passing=True)
    with _Deadline(timeout_s) as deadline:
        try:
            reply = _read(request, timeout_s, deadline)
        except RequestFailed as error:
            raise (late if deadline.over.is_set() else error) from None
    if deadline.over.is_set():  # the reply is incomplete
        raise late
    return reply


def _read(request: urllib.request.Request, timeout_s: float, deadline: _Deadline) -> bytes:
    opener = urllib.request.build_opener(_NoRedirect, _Handler(deadline))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            body = bytearray()
            while piece := reply.read1(2**16):
                body += piece
                if len(body) > LONGEST:
                    raise RequestFailed(f"the server's reply is longer than {LONGEST} bytes")
            return bytes(body)
    except urllib.error.HTTPError as error:
        wait = _seconds(error.headers)
        error.close()
        raise RequestFailed(f"the server said {error.code} {error.reason}", error.code in AGAIN, wait) from error
    except TimeoutError as error:
        raise RequestFailed(f"the server took longer than {timeout_s:g} s", passing=True) from error
    except urllib.error.URLError as error:
        why = error_message(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
        raise RequestFailed(f"the server cannot be reached: {why}", passing=True) from error
    except (InvalidURL, ValueError):  # whose text holds the token, or the header, that is at fault
        raise RequestFailed("the request cannot be sent: its address or a header is not valid HTTP") from None
    except (OSError, HTTPException) as error:
        raise RequestFailed(f"the server broke off: {error_message(error)}", passing=True) from error


def _sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _seconds(headers: Message[str, str]) -> float:
    """Seconds of a Retry-After header; dates are ignored."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0
