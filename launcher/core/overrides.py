"""Values as Hydra reads them in an override, `key=value`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def key_of(word: str) -> str:
    """The key of an override: `optim.lr` of `++optim.lr=1e-5`."""
    return word.lstrip("+~").partition("=")[0]


def argument(key: str, value: str) -> str:
    """`key=value` as Hydra reads it, with the value quoted unless it is a plain name, number or path."""
    return f"{key}={value if is_plain(value) else quoted(value)}"


def is_plain(value: str) -> bool:
    return re.fullmatch(r"[\w./:@%+-]*", value, re.ASCII) is not None


def quoted(value: str) -> str:
    """A text in quotes for Hydra, which escapes only quotes, and backslashes before a quote."""
    text = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + ("\\" if found[2] else "") + found[2], value)
    return f'"{text}"'


def literal(value: Any, text: Callable[[str], str] = quoted) -> str:
    """A value in Hydra's grammar; `text` writes the strings in it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str | Path):
        return text(str(value))
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{literal(inner, text)}' for key, inner in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(literal(inner, text) for inner in value)}]"
    return str(value)  # numbers, also NumPy's
