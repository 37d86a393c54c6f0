"""Processes that have loaded before they are needed: `python -m launcher.clusters.nursery SOCKET MODULE`.

Loading torch takes seconds of a processor, and more where many nodes read it from one disk. A nursery loads MODULE once
and waits: whoever wants a process of it (`spare`) asks at SOCKET and gets a fork. So a run whose process was killed
goes on in a moment. A fork has the words, environment, folder and open files that were asked for. It says itself what
it ends with; the nursery, whose child it is, says so where it cannot:

    > {"words": [...], "env": {...}, "cwd": "...", "fds": [0, 1, 2, 7]}   with the open files themselves
    < {"pid": 4711}                                                       with a descriptor of the process (pidfd)
    < {"code": -9}

A connection that asks nothing keeps the nursery alive. It ends IDLE_S after the last one and the last fork have gone.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import selectors
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

os.environ["SPT_NOENV"] = "1"  # a fork's title may not stand where its variables are: by these a node knows its own
from setproctitle import setproctitle

from launcher.clusters.spare import MODULE
from launcher.core import machine

IDLE_S = 60.0
ASK_S = 5.0  # for a question to come whole
LONGEST = 1 << 16  # bytes at once
MOST_FDS = 32
HIGH = 200  # descriptors from here on, and beyond those that a question names
KINDEST = 19  # of `nice`: whatever else runs goes first while it loads


@dataclass(frozen=True)
class Question:
    words: list[str]
    env: dict[str, str]
    cwd: str
    fds: list[int]
    """The numbers under which its files were open there."""


def main(path: Path, module: str) -> None:
    """Load, answer, end. Where another nursery has the place, or is on its way to it, that one is left alone."""
    os.close(os.pidfd_open(os.getpid()))  # raises where the system has none
    if os.fork():  # nobody's child: Ray ends those of its own
        return
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    born = _load(module)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(MOST_FDS)
        try:
            _Nursery(listener, lock, born).tend()
        finally:
            path.unlink(missing_ok=True)


def _load(module: str) -> Callable[[], int]:
    """What a fork calls: `main` of the module, once its `preload` was. Kindness is a thread's own, so what another
    thread forks has none of it. Raises what loading raises."""

    def load() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), KINDEST)
        import_module(module).preload()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(load).result()
    gc.collect()
    gc.freeze()  # forks share what nobody touches
    born: Callable[[], int] = import_module(module).main
    return born


class _Nursery:
    def __init__(self, listener: socket.socket, lock: int, born: Callable[[], int]) -> None:
        self.listener, self.lock, self.born = listener, lock, born
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(listener, selectors.EVENT_READ)
        self.children: dict[int, tuple[int, socket.socket]] = {}
        """By the descriptor that tells of its end: the process, and who asked for it."""

    def tend(self) -> None:
        while True:
            came = self.waiting.select(IDLE_S)
            for key, _ in came:
                if key.fileobj is self.listener:
                    self.waiting.register(self.listener.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._asked(key.fileobj)
                else:
                    self._ended(key.fd)
            if not came and len(self.waiting.get_map()) == 1:
                return

    def _asked(self, asker: socket.socket) -> None:
        """Someone asks, or has gone."""
        self.waiting.unregister(asker)
        asker.settimeout(ASK_S)
        fds: list[int] = []
        try:
            question = _received(asker, fds)
            pid = os.fork() if question else -1
        except (OSError, ValueError, TypeError):  # half a question, or no room for one more process
            pid = -1
        if question and not pid:
            self._leave(asker)
            _be(question, fds, self.born, asker)
        for fd in fds:
            os.close(fd)
        if pid < 0 or not self._born(pid, asker):
            asker.close()

    def _born(self, pid: int, asker: socket.socket) -> bool:
        """Whether it can be watched; else it is ended."""
        try:
            end = os.pidfd_open(pid)
        except OSError:  # too many open files
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        self.children[end] = pid, asker
        self.waiting.register(end, selectors.EVENT_READ)
        with suppress(OSError):  # nobody wants to know
            socket.send_fds(asker, [_line(pid=pid)], [end])
        return True

    def _ended(self, end: int) -> None:
        pid, asker = self.children.pop(end)
        self.waiting.unregister(end)
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):
            asker.sendall(_line(code=code))
        asker.close()

    def _leave(self, asker: socket.socket) -> None:
        """What is open here is no business of a fork's, its own asker aside."""
        for key in list(self.waiting.get_map().values()):
            os.close(key.fd)  # the listener, those who ask nothing, and who tells of other forks
        for _, other in self.children.values():
            other.close()
        self.waiting.close()
        os.close(self.lock)


def _received(asker: socket.socket, fds: list[int]) -> Question | None:
    """A question, its open files in `fds`; None where the asker has gone. Raises `OSError`, `ValueError` or `TypeError`
    where it does not come whole."""
    text, came, _, _ = socket.recv_fds(asker, LONGEST, MOST_FDS)
    fds += came
    while text and not text.endswith(b"\n"):
        more = asker.recv(LONGEST)
        if not more:
            break
        text += more
    return Question(**json.loads(text)) if text else None


def _line(**node: int) -> bytes:
    return json.dumps(node).encode() + b"\n"


def _be(question: Question, fds: list[int], born: Callable[[], int], asker: socket.socket) -> NoReturn:
    """Be the process that was asked for, to its end."""
    code = 1
    try:
        os.setsid()
        told = _opened(fds, question.fds, asker)
        setproctitle(shlex.join([sys.executable, *MODULE, *question.words]))
        os.environ.clear()
        os.environ.update(question.env)
        os.chdir(question.cwd)
        sys.argv = question.words
        code = _lived(born)
        told.sendall(_line(code=code))  # a nursery that was killed can tell nobody
    finally:
        os._exit(code)


def _opened(fds: list[int], numbers: list[int], asker: socket.socket) -> socket.socket:
    """Give each file the number under which it was open there; the asker has another, out of their way."""
    above = max(HIGH, *numbers) + 1
    *high, told = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in (*fds, asker.fileno())]
    for fd in (*fds, asker.detach()):
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    return socket.socket(fileno=told)


def _lived(born: Callable[[], int]) -> int:
    """What it ended with, as the interpreter would have it."""
    try:
        code = born()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    machine.run_exit_handlers()
    return code


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
