"""Between the processes of a run and their logs: `python -m launcher.core.log_redactor DESCRIPTOR LOG ...`.

It copies what each descriptor (the reading end of a pipe) brings to its log, line by line, with secrets redacted. As
a process of its own it also sees what libraries, C code and whatever they start say, and has it all on the disk when
the others are killed. It ends when nobody holds a pipe any more.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import sys

from launcher.core.redaction import redact

LONGEST = 2**18  # bytes of a line; a longer one is cut where it has a space, so that no secret is
_CHUNK = 2**16
_END = re.compile(rb"[\r\n]")


class Line:
    """What one process says, until its line ends."""

    def __init__(self, source: int, log: int) -> None:
        self.source, self._log = source, log
        self._half = bytearray()
        self._refused = b""

    def read(self) -> bool:
        """Take what is there; False at the end."""
        data = os.read(self.source, _CHUNK)
        if not data:
            self._write(bytes(self._half))
            return False
        fresh = max(len(self._half) - 1, 0)
        self._half += data
        if _END.search(self._half, fresh) or len(self._half) > LONGEST:
            end = max(self._half.rfind(b"\n"), self._half.rfind(b"\r")) + 1
            if not end:
                end = self._half.rfind(b" ") + 1 or len(self._half)
            self._write(bytes(self._half[:end]))
            del self._half[:end]
        return True

    def _write(self, said: bytes) -> None:
        """What a full disk refuses waits, up to LONGEST, and is written with what comes next."""
        text = said.decode("utf-8", "surrogateescape")
        left = self._refused + "".join(map(redact, text.splitlines(keepends=True))).encode("utf-8", "surrogateescape")
        try:
            while left:
                left = left[os.write(self._log, left) :]
        except OSError:
            left = left[-LONGEST:]
        self._refused = left


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the last words of the others are still to come
    given = sys.argv[1:]
    with selectors.DefaultSelector() as ready:
        for source, log in zip(given[::2], given[1::2], strict=True):
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            ready.register(int(source), selectors.EVENT_READ, Line(int(source), descriptor))
        while ready.get_map():
            for key, _ in ready.select():
                if not key.data.read():
                    ready.unregister(key.fd)
                    os.close(key.fd)


if __name__ == "__main__":
    main()
