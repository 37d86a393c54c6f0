"""Standard output and standard error, as commands use them: secrets are redacted, and neither an encoding that lacks a
character, nor a closed stream, nor a full disk ends a run."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from launcher.core.redaction import redact

OUTPUT, ERRORS = "standard output", "standard error"


def protect() -> None:
    """Wrap stdout and stderr for the rest of this process, tracebacks included."""
    if isinstance(sys.stdout, RedactingStream):
        return
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would take its place, and be printed into
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = (
        RedactingStream(_opened(stream, number), name)
        for stream, number, name in ((sys.stdout, 1, OUTPUT), (sys.stderr, 2, ERRORS))
    )


def _opened(stream: TextIO | None, number: int) -> TextIO:
    """A stream that shows a character its encoding lacks by its number."""
    if stream is None:
        return open(number, "w", encoding="utf-8", closefd=False)
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
    return stream


class RedactingStream(io.TextIOBase):
    """Wraps a text stream; each line is redacted as a whole, however many pieces it comes in.

    What cannot be written is lost, and so is all that follows. `OSError` says so with the stream's name, once, and not
    of standard error, as there is nowhere else to say it.
    """

    def __init__(self, to: TextIO, name: str) -> None:
        self._to, self._name, self._partial = to, name, ""

    def write(self, text: str) -> int:
        whole, end, partial = (self._partial + text).rpartition("\n")
        self._partial = partial
        if end:
            self._pass_on("".join(map(redact, (whole + end).splitlines(keepends=True))))
        return len(text)

    def flush(self) -> None:
        partial, self._partial = self._partial, ""
        if partial:
            self._pass_on(redact(partial))
        self._pass_on("", flush=True)

    def _pass_on(self, text: str, *, flush: bool = False) -> None:
        try:
            self._to.write(text)
            if flush:
                self._to.flush()
        except OSError as error:
            with suppress(OSError):  # a stream without a descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._to.fileno())  # takes what waits, at the end, too
            if self._name != OUTPUT:
                return
            if isinstance(error, BrokenPipeError):
                raise
            raise OSError(error.errno, error.strerror, self._name) from error

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
