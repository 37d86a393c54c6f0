"""Serves the page: index.html at the address of every view, and the files that it loads."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parents[1] / "page"
FILES = GZipMiddleware(StaticFiles(directory=FOLDER))

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/runs")
@router.get("/compare")
@router.get("/launch")
@router.get("/run/{rest:path}")
def send_page() -> FileResponse:
    """The address says which view the page opens."""
    return FileResponse(FOLDER / "index.html")
