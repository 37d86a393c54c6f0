"""Untrusted text of logs and answers on its way into a page."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from launcher.core.redaction import MARK, is_secret_name, printable

LAYOUT = "\n\t"


def cut(text: object, most: int) -> str:
    """`text` cut to `most` characters: its first two thirds and last third, with a note of the cut between them."""
    shown = printable(str(text), LAYOUT)
    if len(shown) <= most:
        return shown
    begin = most * 2 // 3
    return f"{shown[:begin]}\n[... {len(shown) - most:,} characters ...]\n{shown[len(shown) - (most - begin) :]}"


def one_line(text: object, most: int = 300) -> str:
    return " ".join(cut(text, most).split())


def setting_text(name: str, value: Any) -> str:
    """A setting's value as text; that of a secret is hidden."""
    if value is not None and is_secret_name(name):
        return MARK
    return one_line("null" if value is None else value if isinstance(value, str) else repr(value), 200)


def for_page(value: Any) -> Any:
    """A value that a template prints into HTML, before it is escaped: texts without secrets and control characters."""
    plain = value is None or isinstance(value, Markup) or not isinstance(value, str)
    return value if plain else printable(value, LAYOUT)
