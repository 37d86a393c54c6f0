"""Redact secrets in everything that is printed, including output of libraries and tracebacks."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from launcher.core.redaction import redact


class RedactingStream(io.TextIOBase):
    """Wraps a text stream; each line is redacted as a whole, however many pieces it comes in."""

    def __init__(self, to: TextIO) -> None:
        self._to, self._partial = to, ""

    def write(self, text: str) -> int:
        whole, end, partial = (self._partial + text).rpartition("\n")
        self._partial = partial
        if end:
            self._to.write("".join(map(redact, (whole + end).splitlines(keepends=True))))
        return len(text)

    def flush(self) -> None:
        partial, self._partial = self._partial, ""
        if partial:
            self._to.write(redact(partial))
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


def redact_standard_streams() -> None:
    """Wrap stdout and stderr for the rest of this process, tracebacks included."""
    if not isinstance(sys.stdout, RedactingStream):
        sys.stdout, sys.stderr = RedactingStream(sys.stdout), RedactingStream(sys.stderr)
