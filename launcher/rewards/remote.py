"""A remote reward server: answers are sent as JSON, and their scores are returned.

POST url  {"answers": [{"response", "ground_truth", "data_source", "extra_info", "prompt"}, ...]}
->        {"scores": [0.5, 1, ...]}, one number for each answer, in order; null for one that it cannot score
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

from launcher.core.bounded_parse import parse_json
from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.redaction import is_secret_name
from launcher.core.settings import AtLeastOne, Count, NonNegative, Positive, settings
from launcher.spec.reward import Answer, DetailedReward, Scores

SENT = ("response", "ground_truth", "data_source", "extra_info", "prompt")  # fields of an answer
KEPT = "would be kept with the run"
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
        from launcher.rewards import http_post  # noqa: PLC0415  late: httpx2 is needed where a server is asked

        batches = [answers[start : start + self.batch_size] for start in range(0, len(answers), self.batch_size)]
        results = http_post.score_all(self, batches)
        total = [score for scores, _ in results for score in scores]
        return Scores(total, {}, [fault for scores, fault in results for _ in scores])

    def body(self, batch: Sequence[Answer]) -> bytes:
        """The JSON body of a request for these answers."""
        nodes = [{name: value for name, value in answer.node.items() if name in SENT} for answer in batch]
        return json.dumps({"answers": nodes}, default=str).encode()

    def all_headers(self) -> dict[str, str]:
        """The headers of a request."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        return {**headers, "Authorization": f"Bearer {self._token}"} if self.token_env else headers

    def read_scores(self, reply: bytes, count: int) -> list[Any]:
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


class RequestFailed(Exception):
    """A failed request; `passing` if a retry may succeed, at the earliest after `wait_s` seconds."""

    def __init__(self, text: str, passing: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.passing, self.wait_s = passing, wait_s
