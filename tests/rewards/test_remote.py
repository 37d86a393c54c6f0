"""A reward behind an address, against a real server that behaves badly."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from launcher.rewards.remote import Remote
from launcher.spec.reward import Answer, score_safely

Behave = Callable[[BaseHTTPRequestHandler, list[dict[str, Any]], int], None]


class Server:
    """Fake: counts requests and lets `behave` answer the n-th."""

    def __init__(self) -> None:
        self.behave: Behave = scores
        self.seen: list[list[tuple[str, str]]] = []
        self.sizes: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                answers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["answers"]
                outer.seen.append([(name.lower(), value) for name, value in self.headers.items()])
                outer.sizes.append(len(answers))
                outer.behave(self, answers, len(outer.seen))

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/score"


def say(to: BaseHTTPRequestHandler, node: Any, code: int = 200, **headers: str) -> None:
    text = node if isinstance(node, bytes) else json.dumps(node).encode()
    to.send_response(code)
    for name, value in headers.items():
        to.send_header(name.replace("_", "-"), value)
    to.send_header("Content-Length", str(len(text)))
    to.end_headers()
    to.wfile.write(text)


def scores(to: BaseHTTPRequestHandler, answers: list[dict[str, Any]], number: int) -> None:
    say(to, {"scores": [float(len(answer["response"])) for answer in answers]})


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()


ANSWERS = [Answer("x" * n, "t", "s", {"i": n}, (("user", "q"),)) for n in range(7)]


def test_batches_come_back_in_order(server: Server) -> None:
    reward = Remote(url=server.url, batch_size=3)
    assert reward.problems() == [] and reward.learned
    assert list(score_safely(reward, ANSWERS).total) == [float(n) for n in range(7)]
    assert sorted(server.sizes) == [1, 3, 3]


NAMED = "reward.url: holds a name or password, which would be kept with the run; use token_env"
ADDRESS = "reward.url: got {!r}; expected http://host:port/path"


@pytest.mark.parametrize(("url", "problems"), [
    ("http://h/x", []), ("https://h:8/x?n=1&key=", []), ("ftp://h/x", [ADDRESS]), ("h:80/x", [ADDRESS]),
    ("file:///etc/passwd", [ADDRESS]), ("http:///x", [ADDRESS]), ("http://me@h/x", [NAMED]),
    ("http://:pw@h/x", [NAMED]),
    ("http://h/x?n=1&key=ab", ["reward.url: key would be kept with the run; use token_env"]),
])  # fmt: skip
def test_addresses_that_cannot_be_used(url: str, problems: list[str]) -> None:
    assert list(map(str, Remote(url=url).problems())) == [each.format(url) for each in problems]


def test_a_server_that_does_not_answer_is_named_with_its_port() -> None:
    (found,) = Remote(url="http://127.0.0.1:9/x").missing_requirements()
    assert found.got == "no server answers at 127.0.0.1:9, connection refused"


def test_what_helps_where_a_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "h")
    reward = Remote(url="http://h/x", timeout_s=0.5)
    assert reward.fix_of("it took longer than 0.5 s") == "use reward.timeout_s=5, or a faster server"
    assert reward.fix_of("cannot be reached").startswith("the server at reward.url has to reply")
    monkeypatch.setenv("no_proxy", "other")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert reward.fix_of("cannot be reached") == "http_proxy takes what goes to it; set no_proxy=h"
    assert (reward.on_trial().timeout_s, reward.on_trial().retries) == (0.5, 0)
    assert Remote(url="http://h/x").on_trial().timeout_s == 5.0


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({"http_proxy": "PROXY"}, "http_proxy"),
        ({"http_proxy": "HTTP://PROXY"}, "http_proxy"),
        ({"http_proxy": "http://PROXY", "no_proxy": "scores.example:81"}, ""),
        ({"https_proxy": "http://PROXY"}, ""),
        ({"all_proxy": "socks5://PROXY"}, ""),  # which the client does not speak
        ({"all_proxy": "socks5h://PROXY", "http_proxy": "PROXY"}, "http_proxy"),
    ],
)
def test_a_proxy_is_that_of_the_environment(
    environment: dict[str, str], asked: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    place = server.url.removeprefix("http://").removesuffix("/score")
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("PROXY", place))
    other = Remote(url="http://scores.example:81/score", retries=0)
    name, address = other.proxy()
    assert (name, address.lower()) == ((asked, f"http://{place}") if asked else ("", ""))
    found = score_safely(other if asked else Remote(url=server.url, retries=0), ANSWERS[:1])
    assert list(found.faults) == [""] and len(server.seen) == 1


WRITTEN = "reward.token_env: SCORE_TOKEN holds characters that a header cannot carry; use printable ASCII characters"
UNSENT = "the request cannot be sent: its address or a header is not valid HTTP"


@pytest.mark.parametrize(
    ("token", "problems", "fault"),
    [
        ("", ["reward.token_env: the environment has no SCORE_TOKEN; set it to the token"], ""),
        ("s3cret", [], ""),
        ("s3cret\n", [], ""),  # as `$(cat file)` does not leave it, but a file read by others does
        ("s3\ncret", [WRITTEN], UNSENT),
        ("s3cret\u2026", [WRITTEN], UNSENT),
    ],
)
def test_the_token_comes_from_the_environment_and_nothing_else_tells_it(
    token: str, problems: list[str], fault: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORE_TOKEN", token)
    reward = Remote(url=server.url, token_env="SCORE_TOKEN", retries=0)
    assert list(map(str, reward.problems())) == problems and "cret" not in repr(reward)
    found = score_safely(reward, ANSWERS[:1])
    if token:
        assert list(found.faults) == [fault]
        assert fault or ("authorization", "Bearer s3cret") in server.seen[0]


NONE = "gave None; expected a number"


@pytest.mark.parametrize(
    ("reply", "code", "faults", "asked"),
    [
        ({"scores": [0.5, 0.5]}, 200, ["", ""], 1),
        ([0.5, 0.5], 200, ["", ""], 1),  # a bare list
        # of what is no score the meaning will not change by asking again
        ({"scores": [0.5, None]}, 200, ["", NONE], 1),
        ({"scores": [0.5, math.nan]}, 200, ["", "gave nan; expected a finite number"], 1),
        ({"scores": [0.5]}, 200, ["the server gave 1 scores for 2 answers; expected one for each"] * 2, 1),
        ({"scores": 0.5}, 200, ["the server's reply has no list \"scores\": b'{\"scores\": 0.5}'"] * 2, 1),
        (b"<html>", 200, ["the server's reply is not JSON: b'<html>'"] * 2, 1),
        (b"[" * 99_999, 200, [f"the server's reply is not JSON: b'{'[' * 75}..."] * 2, 1),
        ({}, 503, ["", ""], 3),  # twice busy, then there
        ({}, 400, ["the server said 400 Bad Request"] * 2, 1),
        ({}, 302, ["the server said 302 Found"] * 2, 1),  # it would take the token elsewhere
    ],
)  # fmt: skip
def test_what_is_no_score_leaves_the_answer_without_one_and_a_busy_server_is_asked_again(
    reply: Any, code: int, faults: list[str], asked: int, server: Server
) -> None:
    def behave(to: BaseHTTPRequestHandler, answers: list[dict[str, Any]], number: int) -> None:
        say(to, reply, code, Location=server.url) if number < 3 else scores(to, answers, number)

    server.behave = behave
    found = score_safely(Remote(url=server.url, backoff_s=0.01), ANSWERS[:2])
    assert (list(found.faults), len(server.seen)) == (faults, asked)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
)
def test_a_reply_that_drips_is_late(head: bytes, server: Server) -> None:
    """Its body, and what stands beside the size of a chunk."""

    def drip(to: BaseHTTPRequestHandler, *_: Any) -> None:
        to.wfile.write(head)
        for _ in range(2000):
            to.wfile.write(b" ")
            time.sleep(0.05)

    server.behave = drip
    begin = time.monotonic()
    found = score_safely(Remote(url=server.url, timeout_s=0.4, retries=0), ANSWERS[:1])
    assert list(found.faults) == ["the server took longer than 0.4 s"] and time.monotonic() - begin < 60


def test_a_server_that_is_gone() -> None:
    (fault,) = score_safely(Remote(url="http://127.0.0.1:9", retries=1, backoff_s=0.01), ANSWERS[:1]).faults
    assert fault == "the server cannot be reached: connection refused"


def test_where_it_stays_away_the_rest_is_not_sent(server: Server) -> None:
    server.behave = lambda to, *_: say(to, {}, 500)
    reward = Remote(url=server.url, batch_size=1, max_parallel=2, retries=0)
    found = score_safely(reward, [Answer("")] * 50)
    assert len(server.seen) <= 4 and found.faults[-1] == "not asked: 2 requests before it failed"
