"""A hub on this machine: it answers as Hugging Face (with Xet) and as ModelScope do, with faults on request: it cuts,
stalls, serves wrong bytes or refuses.

The real client libraries talk to it. Large files are served by a second server (another port, and the name `localhost`
where the hub is `127.0.0.1`), to which the hub redirects with a signed link. Every byte that is sent is counted.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from local_servers import Answering, served

BLOCK, CHUNK = 1 << 20, 1 << 16
"""Bytes of a file in one xorb of Xet, and in one chunk: https://huggingface.co/docs/xet. Xorbs have made-up hashes."""
LFS = (".safetensors", ".bin", ".parquet", ".gz")
TELEMETRY = "/api/agent-harnesses"
"""What the Hugging Face client requests once in a process, whatever it is used for; not recorded."""


PIECE = 16 << 10  # bytes written to a socket at a time

What = Literal["", "cut", "stall", "garble", "500", "429", "size", "no-range", "shift", "more", "redirect"]


@dataclass(frozen=True)
class Act:
    """One way to answer one request for a file's bytes."""

    what: What
    at: int = 0
    """After how many bytes of this answer."""
    to: str = ""


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str = "c" * 40
    gated: bool = False
    xet: bool = False
    """Large files lie in Xet's storage, too."""
    listed: dict[str, bytes] = field(default_factory=dict)
    """Content that the listing describes where it is not what is served."""

    @property
    def described(self) -> dict[str, bytes]:
        return self.files | self.listed


@dataclass(frozen=True)
class ReceivedRequest:
    """A request, as the server received it."""

    port: int
    method: str
    path: str
    headers: dict[str, str]


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class LocalHub:
    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.sent: dict[str, int] = defaultdict(int)
        """Bytes of each file that were written to sockets."""
        self.asked: list[ReceivedRequest] = []
        self.acts: dict[str, deque[Act]] = defaultdict(deque)
        self.bytes_per_s: float | None = None
        self.token: str | None = None
        """The token that may read gated repositories."""
        self.hub, self.cdn = _Server("127.0.0.1", self), _Server("127.0.0.1", self)
        self.endpoint = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://localhost:{self.cdn.server_port}"
        self.closing, self.resume = threading.Event(), threading.Event()
        """Set: it ends; answers that stalled end."""

    def add(self, repo: str, files: dict[str, bytes], kind: str = "model", **more: Any) -> Repo:
        made = self.repos[kind, repo] = Repo(files, **more)
        return made

    def misbehave(self, path: str, *acts: Act) -> None:
        """The next requests for the bytes of `path` are answered with these faults, one each."""
        self.acts[path].extend(acts)

    def environment(self) -> dict[str, str]:
        """Environment variables that make the clients use this hub."""
        return {"HF_ENDPOINT": self.endpoint, "MODELSCOPE_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0"}

    @property
    def total(self) -> int:
        return sum(list(self.sent.values()))


@contextmanager
def serving() -> Iterator[LocalHub]:
    hub = LocalHub()
    with served(hub.hub, hub.cdn):
        try:
            yield hub
        finally:
            hub.closing.set()
            hub.resume.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, of: LocalHub) -> None:
        self.of = of
        super().__init__((host, 0), _Handler, bind_and_activate=False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)  # little is in flight
        self.server_bind()
        self.server_activate()

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are expected."""


class _Handler(Answering):
    server: _Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, url = self.server.of, urlsplit(self.path)
        self.hub, self.query = hub, {name: values[0] for name, values in parse_qs(url.query).items()}
        headers = {name.title(): value for name, value in self.headers.items()}
        path = unquote(url.path)
        if path != TELEMETRY:
            hub.asked.append(ReceivedRequest(self.server.server_port, self.command, self.path, headers))
        for pattern, answer in _ROUTES:
            if match := re.fullmatch(pattern, path):
                getattr(self, answer)(**match.groupdict())
                return
        self._json({"error": "no such endpoint"}, 404)

    def _repo(self, kind: str, repo: str, revision: str | None = None) -> Repo | None:
        found = self.hub.repos.get((kind.strip("/").removesuffix("s"), repo))
        if found is None:
            self._json({"error": "Repository not found", "Code": 404}, 404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in (None, "main", found.commit):
            self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return found

    def _open(self, kind: str, repo: str) -> Repo | None:
        """The repository, where this client may read its files."""
        found = self._repo(kind, repo)
        if found and found.gated and f"Bearer {self.hub.token}" != self.headers.get("Authorization"):
            told = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted"}
            self._json({"error": "gated"}, 403, told)
            return None
        return found

    # Hugging Face

    def hf_info(self, kind: str, repo: str, revision: str | None) -> None:
        if found := self._repo(kind, repo, revision):
            siblings = []
            for path, data in found.described.items():
                lfs = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
                siblings.append({"rfilename": path, "size": len(data), "blobId": git_sha1(data),
                                 "lfs": lfs if path.endswith(LFS) else None})  # fmt: skip
            gated = "manual" if found.gated else False  # listed to everyone
            more = {"tags": [], "private": False, "gated": gated}
            self._json({"id": repo, "sha": found.commit, "siblings": siblings, **more})

    def hf_auth(self, kind: str, repo: str) -> None:
        if self._open(kind, repo):
            self._json({})

    def hf_file(self, kind: str | None, repo: str, revision: str, path: str) -> None:
        found = self._open(kind or "models", repo)
        if not found:
            return
        if path not in found.files:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = found.described[path]
        lfs = path.endswith(LFS)
        etag = hashlib.sha256(data).hexdigest() if lfs else git_sha1(data)
        more = {"X-Repo-Commit": found.commit, "ETag": f'"{etag}"'}
        if lfs:
            more |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            if found.xet:
                route = f"{self.hub.endpoint}/api/{kind or 'models'}/{repo}/xet-read-token/{found.commit}"
                more |= {"X-Xet-Hash": etag, "X-Xet-Refresh-Route": route}
        self._bytes(kind or "models", repo, path, more, lfs)

    def xet_token(self, kind: str, repo: str) -> None:
        if self._open(kind, repo):
            where = {"X-Xet-Cas-Url": self.hub.cdn_url, "X-Xet-Access-Token": "xet"}
            self._json({}, headers={**where, "X-Xet-Token-Expiration": str(int(time.time()) + 3600)})

    def xet_terms(self, name: str) -> None:
        for (kind, repo), found in self.hub.repos.items():
            for path, data in found.described.items():
                if hashlib.sha256(data).hexdigest() == name:
                    url = f"{self.hub.cdn_url}/xorbs/{kind}/{repo}/{path}"
                    node = _reconstruction(found.files[path], self.headers.get("Range", ""), url)
                    self._json(node, 200 if node else 416)
                    return
        self._json({}, 404)

    def xet_bytes(self, kind: str, repo: str, path: str, number: str) -> None:
        place = int(number) * BLOCK
        self.send_bytes(path, _xorb(self.hub.repos[kind, repo].files[path][place : place + BLOCK]), {})

    # ModelScope

    def ms_list(self, kind: str, repo: str) -> None:
        if found := self._open(kind, repo):
            if self.query.get("Revision") not in ("master", found.commit):
                self._json({"Code": 10010205001, "Message": "no such revision"}, 404)
                return
            files = []
            for path, data in found.described.items():
                files.append({"Path": path, "Name": path.rpartition("/")[2], "Type": "blob", "Size": len(data),
                              "Sha256": hashlib.sha256(data).hexdigest(), "Revision": found.commit})  # fmt: skip
            page, size = int(self.query.get("PageNumber", 1)), int(self.query.get("PageSize", len(files) or 1))
            self._json({"Code": 200, "Success": True, "Data": {"Files": files[(page - 1) * size : page * size]}})

    def ms_file(self, kind: str, repo: str) -> None:
        found, path = self._open(kind, repo), self.query["FilePath"]
        if found and path in found.files:
            self._bytes(kind, repo, path, {}, path.endswith(LFS))
        elif found:
            self._json({"Code": 404, "Message": "no such file"}, 404)

    # bytes

    def _bytes(self, kind: str, repo: str, path: str, headers: dict[str, str], remote: bool) -> None:
        acts = self.hub.acts[path]
        if acts and acts[0].what == "redirect":
            self.answer(302, {**headers, "Location": acts.popleft().to})
        elif remote:
            signed = f"{self.hub.cdn_url}/cdn/{kind.strip('/')}/{repo}/{path}?signature=s{len(self.hub.asked)}"
            self.answer(302, {**headers, "Location": signed})
        else:
            self.send_bytes(path, self.hub.repos[kind.strip("/").removesuffix("s"), repo].files[path], headers)

    def cdn_file(self, kind: str, repo: str, path: str) -> None:
        self.send_bytes(path, self.hub.repos[kind.removesuffix("s"), repo].files[path], {})

    def send_bytes(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        acts = self.hub.acts[path]
        act = acts.popleft() if acts else Act("")
        if act.what.isdigit():
            self.answer(int(act.what), {"Retry-After": "0"} if act.what == "429" else {})
            return
        status, start, end = 200, 0, len(data)
        if "Range" in self.headers and act.what != "no-range":
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"])
            assert asked, self.headers["Range"]
            status, start, end = 206, int(asked[1]), int(asked[2] or end - 1) + 1
            if start >= len(data) > 0:
                self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start + (act.what == 'shift')}-{end - 1}/{len(data)}"}
        body = data[start:end]
        match act.what:
            case "garble":
                body = bytes(byte ^ 1 for byte in body)
            case "size":
                status, body = 200, body[:-1]
                headers.pop("Content-Range", None)
            case "more":  # no length is announced, and there is more
                headers, body, self.close_connection = {**headers, "Connection": "close"}, body + b"more", True
        self.answer(status, headers, None if act.what == "more" else len(body))
        if self.command != "HEAD":
            self._write(path, body, act)

    def _write(self, path: str, body: bytes, act: Act) -> None:
        view, began = memoryview(body), time.monotonic()
        stop = act.at if act.what in ("cut", "stall") else len(body)
        for place in range(0, stop, PIECE):
            part = view[place : min(place + PIECE, stop)]
            self.wfile.write(part)
            self.hub.sent[path] += len(part)
            if self.hub.bytes_per_s:
                time.sleep(max((place + PIECE) / self.hub.bytes_per_s - (time.monotonic() - began), 0))
            if self.hub.closing.is_set():
                break
        if act.what == "stall":
            self.hub.resume.wait(60)
        if stop < len(body):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _json(self, node: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(node).encode()
        self.answer(status, {"Content-Type": "application/json", **(headers or {})}, length=len(body))
        if self.command != "HEAD":
            self.wfile.write(body)


def _xorb(data: bytes) -> bytes:
    """Chunks, each behind its header: version, size (3 bytes), compression (none), size again."""
    chunks = [data[place : place + CHUNK] for place in range(0, len(data), CHUNK)]
    sizes = [len(chunk).to_bytes(3, "little") for chunk in chunks]
    return b"".join(b"\0" + size + b"\0" + size + chunk for size, chunk in zip(sizes, chunks, strict=True))


def _reconstruction(data: bytes, wanted: str, url: str) -> dict[str, Any] | None:
    """What blocks hold the bytes of the `Range` header `wanted`; None where it begins behind the end."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
    start, end = (int(found[1]), min(int(found[2]), len(data) - 1)) if found else (0, len(data) - 1)
    if start >= len(data):
        return None
    terms, fetch = [], {}
    for number in range(start // BLOCK, end // BLOCK + 1):
        block = data[number * BLOCK : (number + 1) * BLOCK]
        name = hashlib.sha256(b"%d " % number + block).hexdigest()
        chunks = {"start": 0, "end": -(-len(block) // CHUNK)}
        terms.append({"hash": name, "unpacked_length": len(block), "range": chunks})
        whole = {"start": 0, "end": len(_xorb(block)) - 1}
        fetch[name] = [{"range": chunks, "url": f"{url}/{number}", "url_range": whole}]
    return {"offset_into_first_range": start % BLOCK, "terms": terms, "fetch_info": fetch}


_ID = r"[^/]+/[^/]+"
_ROUTES = (
    (rf"/api/(?P<kind>models|datasets)/(?P<repo>{_ID})(/revision/(?P<revision>.+))?", "hf_info"),
    (rf"/api/(?P<kind>models|datasets)/(?P<repo>{_ID})/auth-check", "hf_auth"),
    (rf"/(?P<kind>datasets/)?(?P<repo>{_ID})/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "hf_file"),
    (rf"/api/v1/(?P<kind>models|datasets)/(?P<repo>{_ID})/repo/(files|tree)", "ms_list"),
    (rf"/api/v1/(?P<kind>models|datasets)/(?P<repo>{_ID})/repo", "ms_file"),
    (rf"/api/(?P<kind>models|datasets)/(?P<repo>{_ID})/xet-read-token/.+", "xet_token"),
    (r"/v1/reconstructions/(?P<name>[0-9a-f]+)", "xet_terms"),
    (rf"/xorbs/(?P<kind>model|dataset)/(?P<repo>{_ID})/(?P<path>.+)/(?P<number>\d+)", "xet_bytes"),
    (rf"/cdn/(?P<kind>models|datasets)/(?P<repo>{_ID})/(?P<path>.+)", "cdn_file"),
)
