"""Errors that ended a program: those of Python, with Ray's and rank prefixes or without, and those of `endings`.

Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: CUDA out of memory
"""

from __future__ import annotations

import re

from launcher.logs import endings

MARK = "Traceback (most recent call last):"
_ERROR = re.compile(r"[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?(?::\s.*)?")
_OF_ANOTHER = "RayTaskError("  # the frames and the error of another process follow
_IGNORED = "Exception ignored in"
_LINES = 2_000  # most lines of one traceback
_LONGEST = 500  # characters of an error that are kept


class TracebackReader:
    """Keeps the first and the last error since `forget`, or since the beginning."""

    def __init__(self) -> None:
        self.first = ""
        self.last = ""
        self.ending: endings.LogEnding | None = None
        """The end without a traceback that tells more than `last`; `ending_line` is its line."""
        self.ending_line = ""
        self._column = 0
        self._source = ""
        self._left = 0
        self._before = ""

    @property
    def open(self) -> bool:
        """Whether a traceback has begun and its error has not come yet."""
        return self._left > 0

    def forget(self) -> None:
        """The program went on: those errors did not end it."""
        self.first = self.last = self.ending_line = ""
        self.ending = None

    def end(self, ending: endings.LogEnding, text: str) -> None:
        """The program ended so. The first says why; after a Python error only one that came from outside does."""
        if self.ending is None and (ending.decides or not self.last):
            self.ending, self.ending_line = ending, _short(text)

    def take(self, text: str, source: str) -> None:
        """Look at a line; `source` is the process that printed it (Ray's prefix)."""
        begins = text.find(MARK)
        if begins >= 0:
            ignored = _IGNORED in self._before
            self._column, self._source, self._left = begins, source, 0 if ignored else _LINES
        elif self.open:
            self._left -= 1
            if source == self._source:
                self._line(text[self._column :])
        self._before = text

    def _line(self, text: str) -> None:
        if not text.strip() or text[0] in " \t|+" or _OF_ANOTHER in text:
            return
        if _ERROR.fullmatch(text.rstrip()):
            self.last = _short(text)
            self.first = self.first or self.last
        self._left = 0


def _short(text: str) -> str:
    return " ".join(text[:_LONGEST].split())
