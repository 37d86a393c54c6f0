"""Servers on this machine, in threads: any, and one of scores."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """No log."""

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
