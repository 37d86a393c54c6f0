"""Standard output and standard error of commands: secrets are redacted, and neither an encoding without a character,
nor a closed stream, nor a full disk ends a run."""

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
        except OSError:  # closed: the next opened file would get its number, and the output
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = (
        RedactingStream(_escaping_stream(stream, number), name)
        for stream, number, name in ((sys.stdout, 1, OUTPUT), (sys.stderr, 2, ERRORS))
    )


def _escaping_stream(stream: TextIO | None, number: int) -> TextIO:
    """The stream, with escapes for characters that its encoding lacks; a new one for a stream that is None."""
    if stream is None:
        return open(number, "w", encoding="utf-8", closefd=False)
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
    return stream


class RedactingStream(io.TextIOBase):
    """Wraps a text stream; each line is redacted as a whole, however many pieces it comes in.

    Where a write fails, its text and all later output is discarded. On standard output the first failure raises
    `OSError` with the stream's name; on standard error it is ignored, as nothing could report it.
    """

    def __init__(self, to: TextIO, name: str) -> None:
        self._stream, self._name, self._partial = to, name, ""

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
            self._stream.write(text)
            if flush:
                self._stream.flush()
        except OSError as error:
            with suppress(OSError):  # a stream without a descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # discards the buffer, also at exit
            if self._name != OUTPUT:
                return
            if isinstance(error, BrokenPipeError):
                raise
            raise OSError(error.errno, error.strerror, self._name) from error

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has an attribute
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # the base class has an attribute
        return self._stream.errors
