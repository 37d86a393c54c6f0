"""What the values of a row may be, whichever file they came from: what text, JSON and a tokenizer can carry on."""

from __future__ import annotations

import math
from typing import Any

from launcher.core.problems import short_repr

MAX_ROW_BYTES = 4 * 2**20
"""A longer row is refused without looking into it."""
MAX_DEPTH = 100
"""Lists and objects inside each other."""
TOO_DEEP = f"lists and objects are nested too deeply; expected at most {MAX_DEPTH} levels"

_TYPES = {str: "text", bool: "bool", int: "int", float: "float", list: "list", dict: "object", type(None): "null"}
_Trail = tuple[Any, str | int] | None  # the trail of what holds this value, and its key or index there


class UnfitRow(ValueError):
    """Why a row cannot be used."""


def type_name(value: object) -> str:
    """What a person who writes JSON calls the type of `value`."""
    return _TYPES.get(type(value), type(value).__name__)


def check(values: dict[str, Any]) -> None:
    """Raise `UnfitRow` for text with NUL or lone surrogates, numbers that are not finite, too much depth or text.

    It neither calls itself nor builds paths on the way, so a row made to hurt costs no more than its length.
    """
    size = 0
    waiting: list[tuple[_Trail, Any, int]] = [(None, values, 1)]
    while waiting:
        trail, value, depth = waiting.pop()
        if isinstance(value, str):
            _check_text(trail, value)
            size += len(value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise UnfitRow(f"{_path(trail)} is {value}; expected a finite number or null")
        elif isinstance(value, dict | list | tuple):
            if depth > MAX_DEPTH:
                raise UnfitRow(TOO_DEEP)
            for step, item in value.items() if isinstance(value, dict) else enumerate(value):
                inner = (trail, step)
                if isinstance(step, str):
                    _check_text(inner, step)
                waiting.append((inner, item, depth + 1))
    if size > MAX_ROW_BYTES:
        raise UnfitRow(f"the row has {size:,} characters; expected at most {MAX_ROW_BYTES:,}")


def _check_text(trail: _Trail, text: str) -> None:
    if "\0" in text:
        raise UnfitRow(f"{_path(trail)} holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnfitRow(f"{_path(trail)} holds a lone surrogate at character {error.start}") from error


def _path(trail: _Trail) -> str:
    """`messages[2].content`; a name that is no word stands as Python writes it."""
    steps: list[str] = []
    while trail:
        trail, step = trail
        steps.append(
            f"[{step}]" if isinstance(step, int) else f".{step if step.isidentifier() else short_repr(step, 40)}"
        )
    path = "".join(reversed(steps)).removeprefix(".")
    return path if len(path) <= 200 else f"{path[:197]}..."
