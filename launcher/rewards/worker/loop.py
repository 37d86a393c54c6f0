"""A worker process: `python -m launcher.rewards.worker.loop KIND STACK DESCRIPTOR`.

It receives settings through the socket, loads the handler of that kind (`worker/KIND.py`), reports that it is ready,
and then handles one request after the other. Its output is discarded. On SIGUSR1 it writes its stack trace to STACK, a
descriptor. It dies with the process that started it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from launcher.core.classes import CODE_DIR, add_code_dir
from launcher.core.user_code import CallFailure, try_call
from launcher.rewards.worker.frames import receive, send


def main() -> None:
    kind, stack = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(stack, False)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    channel, settings = connect()
    if settings.get("memory_bytes"):
        resource.setrlimit(resource.RLIMIT_AS, (settings["memory_bytes"],) * 2)
    file = settings.get("file", settings.get("path", ""))
    work: Any = try_call(lambda: importlib.import_module(f"launcher.rewards.worker.{kind}").load(settings), file)
    send(channel, {"fault": work.reason} if isinstance(work, CallFailure) else {})
    if not isinstance(work, CallFailure):
        serve(channel, work, file)


def connect() -> tuple[socket.socket, Any]:
    """The socket whose descriptor is the last argument, and the settings that arrive first. From here on this process
    ends with the one that started it."""
    channel = socket.socket(fileno=int(sys.argv[-1]))
    channel.set_inheritable(False)
    die_with_parent()
    add_code_dir(os.environ.get(CODE_DIR))
    settings = receive(channel)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return channel, settings


def serve(channel: socket.socket, work: Callable[[Any], Any], file: str) -> None:
    pid = os.getpid()
    while True:
        try:
            request = receive(channel)
        except EOFError:
            return
        result = try_call(partial(work, request), file)
        if os.getpid() != pid:  # a fork that the called code has made returns here, too
            os._exit(0)
        send(channel, {"fault": result.reason} if isinstance(result, CallFailure) else {"value": result})


def die_with_parent() -> None:
    """Standard input is a pipe whose other end only our parent holds; once that closes, the kernel kills our group.

    A thread could not do this, as user code may hold the interpreter for ever.
    """
    lifeline = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
