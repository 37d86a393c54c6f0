"""What is wrong with what a person gave: said all at once, one line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from launcher.secrets import blotted


class Problems(Exception):
    """One line for each thing to mend, in the form `where: what came; what would do`."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


def nearest(word: str, known: Sequence[str], *, listed: str = "it may be") -> str:
    """`did you mean x?` when something known is near, otherwise everything that is known."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"{listed} {', '.join(sorted(known))}" if known else "there is none yet"


def said(error: Exception) -> str:
    """What a library's error says, as one line of ours."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip() or type(error).__name__
    line = blotted(text).splitlines()[0].strip().rstrip(".")  # before any cut: a part of a secret is not known as one
    return line[:1].lower() + line[1:] if re.match(r"[A-Z][a-z]+\b", line) else line


def shown(value: object, limit: int = 80) -> str:
    """`value` as Python writes it, cut so that one line stays one line."""
    text = blotted(repr(value))  # before the cut: a part of a secret is not known as one
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
