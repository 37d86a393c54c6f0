"""Redacts the logs of a run's processes: `python -m launcher.core.log_redactor DESCRIPTOR LOG [DESCRIPTOR LOG ...]`.

It copies each descriptor (the reading end of a pipe) to its log, line by line, with secrets redacted. As a process of
its own it also redacts the output of libraries, C code and subprocesses, and has written all of it when the others are
killed. It ends when nobody holds a pipe any more.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import sys

from launcher.core.files import AppendOnlyFile
from launcher.core.redaction import redact

LONGEST = 2**18
"""Most bytes of a line, and kept for a full disk. A longer line is cut at a space, so that no secret is cut."""
_CHUNK = 2**16
_LINE_END = re.compile(rb"[\r\n]")


class LogRedactor:
    """Copies one pipe to one log, by whole lines."""

    def __init__(self, source: int, log: int) -> None:
        self.source, self._log = source, AppendOnlyFile(log, LONGEST)
        self._unfinished = bytearray()

    def read(self) -> bool:
        """Read once from the pipe and write whole lines; False at its end."""
        data = os.read(self.source, _CHUNK)
        if not data:
            self._write(bytes(self._unfinished))
            return False
        search_start = max(len(self._unfinished) - 1, 0)
        self._unfinished += data
        if _LINE_END.search(self._unfinished, search_start) or len(self._unfinished) > LONGEST:
            end = max(self._unfinished.rfind(b"\n"), self._unfinished.rfind(b"\r")) + 1
            if not end:
                end = self._unfinished.rfind(b" ") + 1 or len(self._unfinished)
            self._write(bytes(self._unfinished[:end]))
            del self._unfinished[:end]
        return True

    def _write(self, data: bytes) -> None:
        lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        self._log.write("".join(map(redact, lines)).encode("utf-8", "surrogateescape"))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the processes still write while they end
    arguments = sys.argv[1:]
    with selectors.DefaultSelector() as ready:
        for source, log in zip(arguments[::2], arguments[1::2], strict=True):
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            ready.register(int(source), selectors.EVENT_READ, LogRedactor(int(source), descriptor))
        while ready.get_map():
            for key, _ in ready.select():
                if not key.data.read():
                    ready.unregister(key.fd)
                    os.close(key.fd)


if __name__ == "__main__":
    main()
