"""Servers on this machine: of bytes with faults on request (it cuts, stalls, serves wrong bytes or refuses, and counts
bytes), and of scores."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Protocol

PIECE = 16 << 10  # bytes written to a socket at a time

What = Literal[
    "cut", "stall", "garble", "500", "429", "size", "no-range", "shift", "more", "redirect",
]  # fmt: skip


@dataclass(frozen=True)
class Act:
    """One way to answer one request for a file's bytes."""

    what: What
    at: int = 0
    """After how many bytes of this answer."""
    to: str = ""


class Misbehaving(Protocol):
    acts: dict[str, deque[Act]]
    """Faults of the next requests for each file."""
    sent: dict[str, int]
    bytes_per_s: float | None
    closing: threading.Event
    resume: threading.Event
    """Set: answers that stalled end."""


def spoil(what: str, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    """The answer with the fault in it."""
    match what:
        case "garble":
            return status, headers, bytes(byte ^ 1 for byte in body)
        case "size":
            return 200, {name: value for name, value in headers.items() if name != "Content-Range"}, body[:-1]
        case "more":  # no length is announced, and there is more
            return status, {**headers, "Connection": "close"}, body + b"more"
    return status, headers, body


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """No log."""

    def send_bytes(self, hub: Misbehaving, path: str, data: bytes, headers: dict[str, str]) -> None:
        acts = hub.acts[path]
        act = acts.popleft() if acts else None
        what = act.what if act else ""
        if what.isdigit():
            self.answer(int(what), {"Retry-After": "0"} if what == "429" else {})
            return
        start, end = self._asked_range(len(data)) if what != "no-range" else (0, len(data))
        status = 200
        if start >= len(data) > 0:
            self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
            return
        if "Range" in self.headers and what != "no-range":
            status = 206
            headers = {**headers, "Content-Range": f"bytes {start + (what == 'shift')}-{end - 1}/{len(data)}"}
        body = data[start:end]
        status, headers, body = spoil(what, status, headers, body)
        self.close_connection = self.close_connection or what == "more"
        self.answer(status, headers, None if what == "more" else len(body))
        self._write(hub, path, body, act)

    def _asked_range(self, size: int) -> tuple[int, int]:
        """The first byte, and the one after the last; all where no range is asked for."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        assert asked, self.headers["Range"]
        return int(asked[1]), int(asked[2] or size - 1) + 1

    def _write(self, hub: Misbehaving, path: str, body: bytes, act: Act | None) -> None:
        if self.command == "HEAD":
            return
        view, began = memoryview(body), time.monotonic()
        stop = act.at if act and act.what in ("cut", "stall") else len(body)
        for place in range(0, stop, PIECE):
            part = view[place : min(place + PIECE, stop)]
            self.wfile.write(part)
            hub.sent[path] += len(part)
            if hub.bytes_per_s:
                time.sleep(max((place + PIECE) / hub.bytes_per_s - (time.monotonic() - began), 0))
            if hub.closing.is_set():
                break
        if act and act.what == "stall":
            hub.resume.wait(60)
        if stop < len(body):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status: int, headers: dict[str, str], length: int | None = 0) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def served(*servers: ThreadingHTTPServer) -> Iterator[None]:
    """While the block runs, each server answers in a thread of its own."""
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


@contextmanager
def scoring(reply: Callable[[list[dict[str, Any]], Mapping[str, str]], dict[str, Any]]) -> Iterator[int]:
    """The port of a reward server, which replies with what `reply` makes of the answers and headers of a request."""

    class Handler(Answering):
        def do_POST(self) -> None:
            answers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["answers"]
            body = json.dumps(reply(answers, self.headers)).encode()
            self.answer(200, {}, len(body))
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with served(server):
        yield server.server_port
