"""Requests to stop a run: by signals, and from any machine that sees its folder by a file in it.

runs/<project>/<experiment>/.stop     `save`: save and end; `now`: end at once
"""

from __future__ import annotations

import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Literal, Protocol, get_args

from launcher.core.files import write_atomic
from launcher.runs.folder import Folder

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK_S = 1.0  # between two looks at the file

StopMode = Literal["save", "now"]


class Stoppable(Protocol):
    def stop(self, number: int) -> None:
        """Ask to save and end."""

    def kill(self) -> None:
        """End at once."""


class StopRequest:
    """The first signal asks `job` to save and end, any other kills it; a request in the folder counts as SIGTERM."""

    def __init__(self, job: Stoppable, folder: Folder) -> None:
        self._job, self._folder = job, folder
        self._looked_at = 0.0
        self.signals: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.signals)

    @property
    def first(self) -> int:
        return self.signals[0]

    def request(self, number: int, _: FrameType | None = None) -> None:
        self.signals.append(number)
        if len(self.signals) == 1:
            self._job.stop(number)
        else:
            self._job.kill()

    def look(self) -> None:
        """Handle a request in the folder, if any; at most every LOOK_S, as the disk may be remote."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        mode = _pop_mode(self._folder)
        if mode and not self:
            with suppress(OSError):  # so that `rlrun stop` here sends no second signal
                write_atomic(self._folder.stopping, "")
            self.request(signal.SIGTERM)
        if mode == "now" and len(self.signals) == 1:  # `save` again asks for nothing new
            self.request(signal.SIGTERM)


Handle = Callable[[StopRequest], AbstractContextManager[None]]
"""Makes a context in which signals of this process go to the stop request."""


def no_signals(request: StopRequest) -> AbstractContextManager[None]:
    """For programs that handle signals themselves: the file in the folder or their call of `request` stops the run."""
    return nullcontext()


@contextmanager
def handle_signals(request: StopRequest) -> Iterator[None]:
    """For a command in the foreground. Python lets only the main thread handle signals; in another one, as of a
    notebook or a server, the file in the folder is what stops the run."""
    signals = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    previous_handlers = {number: signal.signal(number, request.request) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def ask(folder: Folder, mode: StopMode) -> None:
    """Ask the run's writer to stop."""
    write_atomic(folder.stop_request, mode)


def _pop_mode(folder: Folder) -> StopMode | None:
    """The mode in the file, which is removed. A file older than the lock was meant for the previous holder: None."""
    file = folder.stop_request
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            return None
        with file.open("rb") as stream:
            text = stream.read(10).decode("ascii", "replace")
        file.unlink()
        stale = status.st_mtime_ns < (folder.path / ".lock").stat().st_mtime_ns
    except OSError:  # usually there is none; a disk that fails is asked again
        return None
    return None if stale else next((mode for mode in get_args(StopMode) if mode == text), None)
