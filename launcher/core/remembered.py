"""What a plan has computed, kept on disk for the next one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core.bounded_parse import parse_json
from launcher.core.files import expand_user, read_file, write_atomic
from launcher.core.problems import Problems


def cache_folder(kind: str) -> Path:
    """Where results of a kind are kept. Raises `Problems` where there is no home."""
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "rlrun" / kind


def recall(kind: str, key: str) -> Any:
    """What was kept under the key; None where nothing was, or where it cannot be read."""
    with suppress(OSError, ValueError, Problems):
        return parse_json(read_file(cache_folder(kind) / f"{key}.json"))
    return None


def remember(kind: str, key: str, value: Any) -> None:
    """Keep a value that JSON can hold, where the disk allows it."""
    with suppress(OSError, Problems):
        cache_folder(kind).mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(cache_folder(kind) / f"{key}.json", json.dumps(value))
