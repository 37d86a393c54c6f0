"""Answers as JSON: numbers that are not finite are the texts NaN, Infinity, -Infinity, as in every file of a run."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.responses import Response

from launcher.core.events import writable
from launcher.core.redaction import redact

_STEERING = re.compile(r"[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(view: Any) -> Any:
    """Dataclasses, mappings, paths and tuples as what JSON has, as `--json` of the commands prints them."""
    if is_dataclass(view) and not isinstance(view, type):
        view = asdict(view)
    if isinstance(view, dict):
        return {str(key): plain(value) for key, value in view.items()}
    if isinstance(view, list | tuple):
        return [plain(value) for value in view]
    return str(view) if isinstance(view, Path) else view


def encoded(view: Any) -> bytes:
    """`view` as JSON. Characters that steer a terminal or turn text around are escapes, also those that JSON leaves."""
    node = writable(plain(view))
    try:
        found = orjson.dumps(node)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, which a person typed
        return json.dumps(node, allow_nan=False).encode()
    if found.isascii():
        return found
    return _STEERING.sub(lambda each: f"\\u{ord(each[0]):04x}", found.decode()).encode()


class Json(Response):
    """An answer that is JSON already as a value."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


class RedactedJson(Json):
    """... of what a request brought: a folder's files have no secrets."""

    def render(self, content: Any) -> bytes:
        return redact(encoded(content).decode()).encode()
