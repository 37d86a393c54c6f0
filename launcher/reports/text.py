"""Text of logs and answers, which nobody has checked, on its way into a page or into Markdown."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from launcher.core.redaction import MARK, is_secret_name, printable

_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~&$@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|^[-+=](?=\s|$))")
_NUMBERED = re.compile(r"^([0-9]+)([.)])(?=\s|$)")  # would begin a list
LAYOUT = "\n\t"
_FENCE = re.compile(r"`{3,}")


def cut(text: object, most: int) -> str:
    """At most so many characters: the first two thirds and the last third, and between how many are left out."""
    shown = printable(str(text), LAYOUT)
    if len(shown) <= most:
        return shown
    begin = most * 2 // 3
    return f"{shown[:begin]}\n[... {len(shown) - most:,} characters ...]\n{shown[len(shown) - (most - begin) :]}"


def one_line(text: object, most: int = 300) -> str:
    return " ".join(cut(text, most).split())


def setting_text(name: str, value: Any, most: int = 200) -> str:
    """A setting's value; a secret's is hidden."""
    if value is not None and is_secret_name(name):
        return MARK
    return one_line("null" if value is None else value if isinstance(value, str) else repr(value), most)


class Plain(str):
    """Markdown of ours, which is not escaped."""


def for_page(value: Any) -> Any:
    """What a template prints into HTML, before it is escaped."""
    plain = value is None or isinstance(value, Markup) or not isinstance(value, str)
    return value if plain else printable(value, LAYOUT)


def for_markdown(value: Any) -> Any:
    """What a template prints into Markdown: text on one line, with every mark escaped."""
    if isinstance(value, Plain) or not isinstance(value, str):
        return value
    return _NUMBERED.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", one_line(value, 600)))


def fenced(text: object, most: int = 3_000) -> Plain:
    """A block of text as it is, in a fence that it does not hold."""
    shown = cut(text, most)
    longest = max((len(found) for found in _FENCE.findall(shown)), default=2)
    fence = "`" * max(longest + 1, 3)
    return Plain(f"{fence}text\n{shown}\n{fence}")
