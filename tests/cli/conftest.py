"""A command on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from typing import Any

import pytest

CTRL_C = "\x03"
SILENT_S = 60.0


class Terminal:
    """`rlrun` on a pseudo-terminal of its own; what it draws is read as it comes."""

    def __init__(self, rlrun: Any, *words: str, term: str) -> None:
        self.number, inside = pty.openpty()
        self.process: subprocess.Popen[str] = rlrun.begin(
            *words, env={**os.environ, "TERM": term, "COLUMNS": "100"}, stdin=inside, stdout=inside, stderr=inside,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inside)
        self.unseen, self.keys, self.heard_at = "", "", time.monotonic()

    def press(self, keys: str) -> None:
        os.write(self.number, keys.encode())
        self.keys, self.heard_at = keys or self.keys, time.monotonic()

    def sees(self, text: str) -> bool:
        """Whether the text has been drawn after the one that was seen before. A Ctrl-C is pressed again after a silent
        minute: readline does not see one that arrives between its prompt and its wait for a key."""
        while text not in self.unseen and select.select([self.number], [], [], 0.1)[0]:
            try:
                self.unseen += os.read(self.number, 65536).decode(errors="replace")
            except OSError:  # Linux says so that no process has the other end open
                break
            self.heard_at = time.monotonic()
        if self.keys == CTRL_C and time.monotonic() - self.heard_at > SILENT_S:
            self.press(CTRL_C)
        before, found, after = self.unseen.partition(text)
        self.unseen = after if found else before
        return bool(found)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.number)


@pytest.fixture(scope="session")
def on_terminal() -> type[Terminal]:
    return Terminal
