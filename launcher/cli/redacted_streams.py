"""Standard output and standard error without secrets: also what libraries print, and the text of an uncaught error."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from launcher.core.redaction import redact


class Blotting(io.TextIOBase):
    """A text stream before another one. A line is looked at as a whole, however many pieces it comes in."""

    def __init__(self, to: TextIO) -> None:
        self._to, self._half = to, ""

    def write(self, text: str) -> int:
        whole, end, half = (self._half + text).rpartition("\n")
        self._half = half
        if end:
            self._to.write("".join(map(redact, (whole + end).splitlines(keepends=True))))
        return len(text)

    def flush(self) -> None:
        half, self._half = self._half, ""
        if half:
            self._to.write(redact(half))
        self._to.flush()

    def isatty(self) -> bool:
        return self._to.isatty()

    def fileno(self) -> int:
        return self._to.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has an attribute
        return self._to.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # the base class has an attribute
        return self._to.errors


def blotting() -> None:
    """Put one before each of this process's streams, for good: what is said last is an error's traceback."""
    if not isinstance(sys.stdout, Blotting):
        sys.stdout, sys.stderr = Blotting(sys.stdout), Blotting(sys.stderr)
