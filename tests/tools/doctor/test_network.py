"""Real sockets: ports that are taken, unknown host names, hubs that answer, refuse or hang."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from launcher.tools.doctor import network


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def server() -> Iterator[str]:
    """A hub that knows nobody, and says so."""

    class Unknown(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Unknown) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{served.server_port}"
        served.shutdown()


def test_a_name_that_nobody_knows() -> None:
    found = network.check_hostname("no-such-machine.invalid")
    assert found.level == "WARN"
    assert found.fix.startswith("add the line `127.0.0.1 no-such-machine.invalid` to /etc/hosts")
    assert network.check_hostname("localhost").level == "OK"


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "example.com"}, "WARN"),
        ({"http_proxy": "http://p:1", "no_proxy": "localhost"}, "WARN"),  # the address itself is still caught
        ({"http_proxy": "http://p:1", "no_proxy": "localhost,127.0.0.1"}, None),
    ],
)
def test_proxies_that_catch_this_machine(environment: dict[str, str], level: str | None) -> None:
    assert [one.level for one in network.check_proxies(environment)] == ([level] if level else [])


def test_any_answer_of_a_hub_counts(server: str) -> None:
    assert network.check_hub("huggingface", "HF_ENDPOINT", f"http://{server}").level == "OK"


@pytest.mark.parametrize(
    ("endpoint", "word"),
    [
        ("http://user:canary@127.0.0.1:9", "127.0.0.1 cannot be reached: connection refused"),
        ("http://user:canary@no-such-hub.invalid", "no-such-hub.invalid cannot be reached"),
        (
            "http://user:canary:x@127.0.0.1:port",
            "HF_ENDPOINT is not a server address",
        ),  # urllib's own error quotes it
        ("canary", "HF_ENDPOINT is not a server address"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_a_warning_without_its_password(endpoint: str, word: str) -> None:
    found = network.check_hub("huggingface", "HF_ENDPOINT", endpoint)
    assert found.level == "WARN" and word in found.message, found
    assert "canary" not in found.line


def test_a_hub_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = network.check_hub("modelscope", "MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert found.level == "WARN" and "MODELSCOPE_ENDPOINT" in found.fix


def test_offline_by_choice_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert network.check_hub("huggingface", "HF_ENDPOINT", "http://no-such-hub.invalid").level == "OK"


def test_an_address_that_no_name_server_takes() -> None:
    found = network.check_hub("huggingface", "HF_ENDPOINT", f"http://{'a' * 70}.com")
    assert (found.level, found.message) == ("WARN", "HF_ENDPOINT is not a server address")
