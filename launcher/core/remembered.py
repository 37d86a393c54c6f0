"""A cache on disk of what a plan has computed, for later plans. Each kind of result has a folder of limited size."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.files import expand_user, read_file, write_atomic
from launcher.core.problems import Problems

MOST = 500
"""Most results of a kind that are kept; the oldest are deleted."""


def cache_folder(kind: str) -> Path:
    """The folder of a kind of results. Raises `Problems` where the user has no home folder."""
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "rlrun" / kind


def recall(kind: str, key: str) -> Any:
    """The value stored under `key`; None where there is none, or it cannot be read."""
    with suppress(OSError, ValueError, Problems):
        return parse_json(read_file(cache_folder(kind) / f"{key}.json"))
    return None


def remember(kind: str, key: str, value: Any) -> None:
    """Store a JSON-serializable value; an error of the disk is ignored."""
    with suppress(OSError, Problems):
        folder = cache_folder(kind)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / f"{key}.json", json.dumps(value))
        newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in newest_first[MOST:]:
            path.unlink()
