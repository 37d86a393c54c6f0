"""Responses as JSON; numbers that are not finite become the texts NaN, Infinity, -Infinity, as in files of runs."""

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

_CONTROL = re.compile(r"[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(view: Any) -> Any:
    """Dataclasses, mappings, paths and tuples converted to JSON types, as commands print them with `--json`."""
    if is_dataclass(view) and not isinstance(view, type):
        view = asdict(view)
    if isinstance(view, dict):
        return {str(key): plain(value) for key, value in view.items()}
    if isinstance(view, list | tuple):
        return [plain(value) for value in view]
    return str(view) if isinstance(view, Path) else view


def encoded(view: Any) -> bytes:
    """`view` as JSON; control and text direction characters are escaped, also those that JSON allows."""
    node = writable(plain(view))
    try:
        data = orjson.dumps(node)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits
        return json.dumps(node, allow_nan=False).encode()
    if data.isascii():
        return data
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()


class Json(Response):
    """A response whose content is encoded by `encoded`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


class RedactedJson(Json):
    """The same, redacted: for content that came with a request. Files of runs hold no secrets."""

    def render(self, content: Any) -> bytes:
        return redact(encoded(content).decode()).encode()
