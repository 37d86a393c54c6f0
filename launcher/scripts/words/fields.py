"""Fields: what a word splits into where it is not quoted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from launcher.scripts.words.state import FIELDS, StopReading


@dataclass(frozen=True)
class FieldPiece:
    """A part of a word with its value.

    `many`: each value is a field of its own, as in "$@"; `literal`: it stands in the script, and is not split."""

    values: tuple[str, ...]
    quoted: bool
    many: bool = False
    literal: bool = False


class FieldList:
    """Fields of a word, while its pieces are added."""

    def __init__(self, separators: str, mark: Callable[[str], str]) -> None:
        """`mark` is applied to what is split."""
        self.mark = mark
        self.fields: list[str] = []
        self.current: list[str] | None = None
        self.white = "".join(c for c in separators if c in " \t\n")
        self.marks = "".join(c for c in separators if c not in " \t\n")
        self.after_white = False
        self.pattern_from = FIELDS + 1
        """The number of the first field that has a pattern of file names which is not quoted."""

    def add(self, text: str) -> None:
        """Characters of the current field."""
        if self.current is None:
            self.current = []
        self.current.append(text)
        self.after_white = False

    def end(self) -> None:
        """Ends the current field, if there is one."""
        if self.current is not None:
            self.fields.append("".join(self.current))
            self.current = None
            if len(self.fields) > FIELDS:
                raise StopReading("too many words")

    def split(self, value: str) -> None:
        """Adds a value that is not quoted."""
        if not self.white and not self.marks:
            if value:
                self.add(self.mark(value))
            return
        for run in re.findall(
            f"[{re.escape(self.white + self.marks)}]|[^{re.escape(self.white + self.marks)}]+", value
        ):
            if run in self.white:
                if self.current is not None:
                    self.end()
                    self.after_white = True
            elif run in self.marks:
                if self.current is None and not self.after_white:
                    self.current = []
                self.end()
                self.after_white = False
            else:
                self.add(self.mark(run))
