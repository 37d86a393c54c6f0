"""What is asked of a run while it goes on: by signals, and from any machine that sees its folder by a file in it.

runs/<project>/<experiment>/.stop     `save`: save and end; `now`: end at once
"""

from __future__ import annotations

import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal, Protocol, get_args

from launcher.core.files import write_atomic
from launcher.runs.folder import Folder

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK_S = 1.0  # between two looks at the file

Wish = Literal["save", "now"]


class Stoppable(Protocol):
    def stop(self, number: int) -> None:
        """Ask to save and end."""

    def kill(self) -> None:
        """End at once."""


class Asked:
    """The first signal stops `job`, any other kills it; a wish in the folder counts as SIGTERM."""

    def __init__(self, job: Stoppable, folder: Folder) -> None:
        self._job, self._folder = job, folder
        self._looked = 0.0
        self.came: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.came)

    @property
    def first(self) -> int:
        return self.came[0]

    def heed(self, number: int, _: FrameType | None = None) -> None:
        self.came.append(number)
        if len(self.came) == 1:
            self._job.stop(number)
        else:
            self._job.kill()

    def look(self) -> None:
        """Heed what lies in the folder; now and then, as that may be far away."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        wish = _taken(self._folder)
        if wish:
            self.heed(signal.SIGTERM)
        if wish == "now" and len(self.came) == 1:
            self.heed(signal.SIGTERM)


@contextmanager
def heeding(job: Stoppable, folder: Folder) -> Iterator[Asked]:
    """While `folder` is written by this process."""
    asked = Asked(job, folder)
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, asked.heed) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ask(folder: Folder, wish: Wish) -> None:
    """Ask whoever writes the folder."""
    write_atomic(_file(folder), wish)


def withdraw(folder: Folder) -> None:
    _file(folder).unlink(missing_ok=True)


def _taken(folder: Folder) -> Wish | None:
    """The wish, which is then gone. One that is older than the lock was meant for who held that before."""
    file = _file(folder)
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode):
            return None
        with file.open("rb") as opened:
            said = opened.read(10).decode("ascii", "replace")
        file.unlink()
        stale = found.st_mtime_ns < (folder.path / ".lock").stat().st_mtime_ns
    except OSError:  # mostly it is not there; a disk that does not answer is asked again
        return None
    return None if stale else next((wish for wish in get_args(Wish) if wish == said), None)


def _file(folder: Folder) -> Path:
    return folder.path / ".stop"
