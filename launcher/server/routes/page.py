"""Serves the page: index.html at the address of every view, and the files that it loads."""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parents[1] / "page"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {
    path.relative_to(FOLDER).as_posix(): path
    for pattern in ("*.html", "*.css", "js/**/*.js")
    for path in sorted(FOLDER.glob(pattern))
}
"""All served files by name, so that no name in a request is ever used as a path."""

router = APIRouter(include_in_schema=False)


@router.get("/page/{name:path}")
def send_file(name: str, request: Request) -> Response:
    """A style sheet or module of the page."""
    return _send(name, request)


@router.get("/")
@router.get("/runs")
@router.get("/compare")
@router.get("/launch")
@router.get("/run/{rest:path}")
def send_page(request: Request) -> Response:
    """The address says which view the page opens."""
    return _send("index.html", request)


def _send(name: str, request: Request) -> Response:
    if name not in FILES:
        raise HTTPException(404, "no such file")
    path = FILES[name]
    content, compressed, tag = _read_file(path, path.stat().st_mtime_ns)
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=TYPES[path.suffix])
    return Response(content, headers=headers, media_type=TYPES[path.suffix])


@lru_cache(maxsize=64)
def _read_file(path: Path, changed_ns: int) -> tuple[bytes, bytes, str]:
    """A file's bytes, the same compressed by gzip, and the ETag of both."""
    content = path.read_bytes()
    return content, gzip.compress(content, mtime=0), f'"{hashlib.sha256(content).hexdigest()[:20]}"'
