"""Processes that have loaded before they are needed: `python -m launcher.clusters.nursery SOCKET MODULE`.

Loading torch takes seconds of a processor, and more where many nodes read it from one disk. A nursery loads MODULE once
and waits: whoever wants a process of it (`spare`) asks at SOCKET and gets a fork. So a run whose process was killed
goes on in a moment. A fork has the words, environment, folder and open files that were asked for; it is the nursery's
child, which says what it ended with. One question a connection, and it ends with the process:

    > {"words": [...], "env": {...}, "cwd": "...", "fds": [0, 1, 2, 7]}   with the open files themselves
    < {"pid": 4711}
    < {"code": -9}

A nursery ends once nothing that it made has run, and nobody has asked, for IDLE_S.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import logging
import os
import selectors
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from launcher.clusters.spare import MODULE

IDLE_S = 60.0
ASK_S = 5.0  # for a question to come whole
LONGEST = 1 << 16  # bytes at once
MOST_FDS = 32
HIGH = 200  # descriptors beyond those that a question names
KINDEST = 19  # of `nice`: whatever else runs goes first while it loads


def main(path: Path, module: str) -> None:
    """Load, answer, end. Where another nursery has the place, or is on its way to it, that one is left alone."""
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
    thread forks has none of it."""

    def load() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), KINDEST)
        import_module(module).preload()

    loading = threading.Thread(target=load)
    loading.start()
    loading.join()
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
                self._asked() if key.fileobj is self.listener else self._ended(key.fd)
            if not came and not self.children:
                return

    def _asked(self) -> None:
        asker, _ = self.listener.accept()
        asker.settimeout(ASK_S)
        try:
            asked, fds = _receive(asker)
        except (OSError, ValueError):
            asker.close()
            return
        pid = os.fork()
        if not pid:
            self._leave(asker)
            os._exit(_be(asked, fds, self.born))
        for fd in fds:
            os.close(fd)
        end = os.pidfd_open(pid)
        self.children[end] = pid, asker
        self.waiting.register(end, selectors.EVENT_READ)
        _say(asker, pid=pid)

    def _ended(self, end: int) -> None:
        pid, asker = self.children.pop(end)
        self.waiting.unregister(end)
        os.close(end)
        _say(asker, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        asker.close()

    def _leave(self, asker: socket.socket) -> None:
        """What is open here is no business of a fork's."""
        self.waiting.close()
        self.listener.close()
        asker.close()
        os.close(self.lock)
        for end, (_, other) in self.children.items():
            os.close(end)
            other.close()


def _receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A question and its open files. Raises `OSError` or `ValueError` where it does not come whole."""
    text, fds, _, _ = socket.recv_fds(asker, LONGEST, MOST_FDS)
    while text and not text.endswith(b"\n"):
        more = asker.recv(LONGEST)
        if not more:
            break
        text += more
    asked: dict[str, Any] = json.loads(text)
    return asked, fds


def _say(asker: socket.socket, **node: int) -> None:
    with suppress(OSError):  # nobody wants to know
        asker.sendall(json.dumps(node).encode() + b"\n")


def _be(asked: dict[str, Any], fds: list[int], born: Callable[[], int]) -> int:
    """Be the process that was asked for, to its end: the exit code."""
    code = 1
    try:
        os.setsid()
        _open(fds, asked["fds"])
        setproctitle(shlex.join([sys.executable, *MODULE, *asked["words"]]))  # it looks for the old one beside these:
        os.environ.clear()
        os.environ.update(asked["env"])
        if asked["cwd"]:
            os.chdir(asked["cwd"])
        sys.argv = asked["words"]
        code = born()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001  as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _open(fds: list[int], numbers: list[int]) -> None:
    """Give each file the number under which it was open there."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
