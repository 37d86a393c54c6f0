"""A server of bytes with faults on request: it cuts, stalls, drips, serves wrong bytes or refuses, and counts bytes."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal, Protocol

PIECE = 16 << 10  # bytes written to a socket at a time

What = Literal[
    "cut", "stall", "drip", "garble", "416", "403", "500", "429", "size", "no-range", "shift", "gzip", "more",
    "redirect",
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


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """No log."""

    def send_bytes(self, hub: Misbehaving, path: str, data: bytes, headers: dict[str, str]) -> None:
        acts = hub.acts[path]
        act = acts.popleft() if acts else None
        what = act.what if act else None
        if what in ("416", "403", "500", "429"):
            self.answer(int(str(what)), {"Retry-After": "0"} if what == "429" else {})
            return
        start, size = 0, len(data)
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) and what != "no-range":
            start, data = int(asked[1]), data[: int(asked[2]) + 1] if asked[2] else data
            if start >= size:
                self.answer(416, {"Content-Range": f"bytes */{size}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start + (what == 'shift')}-{size - 1}/{size}"}
        body = data[start:]
        if what == "garble":
            body = bytes(byte ^ 1 for byte in body)
        if what == "size":
            body, headers = body[:-1], {name: of for name, of in headers.items() if name != "Content-Range"}
        if what == "more":  # no length is announced, and there is more
            self.answer(206 if asked else 200, {**headers, "Connection": "close"}, length=None)
            self._write(hub, path, body + b"more", act)
            self.close_connection = True
            return
        more = {"Content-Encoding": "gzip"} if what == "gzip" else {}
        self.answer(206 if asked and what not in ("size", "no-range") else 200, {**headers, **more}, length=len(body))
        self._write(hub, path, body, act)

    def _write(self, hub: Misbehaving, path: str, body: bytes, act: Act | None) -> None:
        if self.command == "HEAD":
            return
        view, began = memoryview(body), time.monotonic()
        stop = act.at if act and act.what in ("cut", "stall") else len(body)
        speed = 2000.0 if act and act.what == "drip" else hub.bytes_per_s
        piece = 200 if act and act.what == "drip" else PIECE
        for place in range(0, stop, piece):
            part = view[place : min(place + piece, stop)]
            self.wfile.write(part)
            hub.sent[path] += len(part)
            if speed:
                time.sleep(max((place + piece) / speed - (time.monotonic() - began), 0))
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
