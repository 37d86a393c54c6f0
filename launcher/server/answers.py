"""Responses as JSON; numbers that are not finite become the texts NaN, Infinity, -Infinity, as in files of runs."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
from starlette.responses import Response

from launcher.core.events import writable

_CONTROL = re.compile(r"[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def encoded(view: Any) -> bytes:
    """`view`, of dataclasses, mappings, lists and paths, as JSON; control and text direction characters are escaped,
    also those that JSON allows."""
    return encoded_node(writable(view))


def encoded_node(node: Any) -> bytes:
    """As `encoded`, of what `writable` has returned, which takes most of the time."""
    try:
        data = orjson.dumps(node, default=str, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits
        return json.dumps(node, allow_nan=False, default=str).encode()
    if data.isascii():
        return data
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()


class Json(Response):
    """A response whose content is encoded by `encoded`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)
