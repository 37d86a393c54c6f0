"""A redirect is followed only to where it may lead: never from the internet into a private network."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from launcher.hubs import web
from launcher.hubs.repo import Address, Patience

QUICK = Patience(connect_s=2, read_s=1)
HOSTS = [
    ("127.0.0.1", False), ("localhost", False), ("0x7f.1", False), ("2130706433", False), ("127.1", False),  # this one
    ("169.254.169.254", False), ("10.0.0.1", False), ("192.168.1.1", False), ("172.16.0.1", False),  # this network
    ("100.64.0.1", False), ("0.0.0.0", False), ("::1", False), ("::ffff:127.0.0.1", False), ("fe80::1", False),
    ("fd00::1", False),
    ("8.8.8.8", True), ("2606:4700:4700::1111", True), ("::ffff:8.8.8.8", True),
    ("no-such-name.invalid", True),  # a proxy may know it; without one nothing is reached anyway
]  # fmt: skip


@pytest.mark.parametrize(("host", "public"), HOSTS)
def test_addresses_of_the_internet(host: str, public: bool) -> None:
    assert web.is_public(host) == public


class _Proxy(BaseHTTPRequestHandler):
    """Stands for the internet: answers for every host by a table."""

    answers: dict[str, tuple[int, dict[str, str]]] = {}
    asked: list[tuple[str, dict[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, {name.title(): value for name, value in self.headers.items()}))
        status, headers = self.answers.get(self.path, (200, {}))
        body = b"bytes" if status == 200 else b""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Proxy]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    _Proxy.answers, _Proxy.asked = {}, []
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    yield _Proxy
    server.shutdown()
    thread.join()
    server.server_close()


def read(url: str) -> bytes:
    address = Address(url, {"Authorization": "Bearer secret"})
    with web.Session() as session, web.opened(session, address, 0, QUICK) as answer:
        return answer.read()


@pytest.mark.parametrize("to", ["http://127.0.0.1:9/x", "http://169.254.169.254/latest", "http://[::1]:9/x",
                                "http://0x7f.1:9/x", "//localhost:9/x"])  # fmt: skip
def test_the_internet_leads_into_no_private_network(to: str, internet: Any) -> None:
    internet.answers["http://hub.invalid/file"] = (302, {"Location": to})
    with pytest.raises(web.Refused, match=r"hub.invalid sends us to .*, an address of a private network"):
        read("http://hub.invalid/file")
    assert [path for path, _ in internet.asked] == ["http://hub.invalid/file"]


def test_nor_by_a_second_step(internet: Any) -> None:
    internet.answers["http://hub.invalid/file"] = (302, {"Location": "http://cdn.invalid/x"})
    internet.answers["http://cdn.invalid/x"] = (307, {"Location": "http://127.0.0.1:9/x"})
    with pytest.raises(web.Refused, match=r"cdn.invalid sends us to 127.0.0.1:9"):
        read("http://hub.invalid/file")


def test_it_may_lead_to_another_host_which_sees_no_token(internet: Any) -> None:
    internet.answers["http://hub.invalid/file"] = (302, {"Location": "/file2"})  # the same host: with the token
    internet.answers["http://hub.invalid/file2"] = (302, {"Location": "http://hub.invalid:8080/x"})  # another port
    internet.answers["http://hub.invalid:8080/x"] = (302, {"Location": "http://cdn.invalid/x?secret=link"})
    assert read("http://hub.invalid/file") == b"bytes"
    assert ["Authorization" in headers for _, headers in internet.asked] == [True, True, False, False]


def test_a_name_that_turns_out_to_be_private(internet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: what was looked up is public, whom we then talk to is not."""
    monkeypatch.setattr(web, "is_public", lambda host: host != "127.0.0.1")
    port = int(os.environ["http_proxy"].rpartition(":")[2])
    with pytest.raises(web.Refused, match=r"turned out to be 127.0.0.1"):
        read(f"http://localhost:{port}/x")
    assert internet.asked == []  # not a word was said


def test_https_never_leads_to_http() -> None:
    with pytest.raises(web.Refused, match=r"sends us from https to http at cdn.invalid"):
        web._next("https://hub.invalid/x", "http://cdn.invalid/x", True)
    assert web._next("https://hub.invalid/x", "https://cdn.invalid/x", True) == "https://cdn.invalid/x"


def test_netrc_adds_no_password(internet: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine cdn.invalid login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    internet.answers["http://hub.invalid/file"] = (302, {"Location": "http://cdn.invalid/x"})
    read("http://hub.invalid/file")
    assert "Authorization" not in internet.asked[-1][1]


def test_git_names_content() -> None:
    """The hash that small files have on Hugging Face: git's own for `hello` and a line's end."""
    data = b"hello\n"
    assert hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == "ce013625030ba8dba906f756967f9e9ca394464a"
