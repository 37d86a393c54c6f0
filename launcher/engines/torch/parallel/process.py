"""What every process of a run does, whatever its work: it tells in its own log, says where it stands, and ends when the
one that started it does."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import NoReturn

from launcher.clusters.local import LIFELINE, TOLD
from launcher.clusters.local.stacks import STACK
from launcher.core import machine
from launcher.core.events import MARK, CrashCause, Crashed, Event, to_line
from launcher.core.files import AppendOnlyFile
from launcher.core.problems import Problems


@cache
def event_log() -> AppendOnlyFile:
    """What tells events: a log of this process's own, where there is one. What we start has no business there."""
    if TOLD not in os.environ:
        return AppendOnlyFile(1)
    descriptor = int(os.environ.pop(TOLD))
    os.set_inheritable(descriptor, False)
    return AppendOnlyFile(descriptor)


def emit(event: Event) -> None:
    event_log().append(MARK + to_line(event))


def set_up(ask: Callable[[int, object], None]) -> None:
    """`ask` is told each signal that asks this process to save and end."""
    _dump_stacks_on_signal()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    event_log()
    _watch_parent()
    sys.excepthook = emit_crash
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


def emit_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught error as an event for people, and as a traceback for the log."""
    output = f"{kind.__name__}: {error}" if str(error) else kind.__name__
    lines = tuple(error.lines) if isinstance(error, Problems) else (output,)
    emit(Crashed(lines=lines, cause=_cause_of(error)))
    traceback.print_exception(kind, error, trace)


def _cause_of(error: BaseException) -> CrashCause:
    if not isinstance(error, Problems):
        return "error"
    return "numbers" if any(problem.code == "not-finite" for problem in error.problems) else "configuration"


def run_main(main: Callable[[], int]) -> NoReturn:
    """Be a process that ends as `main` says, and with 1 by what it does not catch."""
    code = 1
    try:
        code = main()
    finally:
        try:
            if error := sys.exc_info()[1]:
                emit_crash(type(error), error, error.__traceback__)
        finally:  # also where nobody can be told
            exit_process(code)


def exit_process(code: int) -> NoReturn:
    """End this process without taking the interpreter apart: what torch's threads do meanwhile has aborted processes
    that had finished."""
    machine.run_exit_handlers()
    os._exit(code)


def _watch_parent() -> None:
    """End at once when the process that started us is gone: nobody would read what we say."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    if os.environ.get(LIFELINE):
        threading.Thread(target=watch, daemon=True).start()


def _dump_stacks_on_signal() -> None:
    """Where we stand, whenever we are asked by SIGUSR1."""
    if STACK in os.environ:
        descriptor = int(os.environ.pop(STACK))
        os.set_inheritable(descriptor, False)
        faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)
