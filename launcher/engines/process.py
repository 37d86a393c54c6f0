"""Common parts of a run's processes: event log, signals, exit codes, and ending with the parent process."""

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

from launcher.clusters.local import EVENT_LOG, LIFELINE, STACK_FILE
from launcher.core import machine
from launcher.core.events import MARK, CrashCause, Crashed, Event, to_line
from launcher.core.files import AppendOnlyFile
from launcher.core.problems import Problems
from launcher.core.user_code import Raised

FULL_S = 0.2  # between two tries to write to a full disk
_stop_requested = threading.Event()
"""A signal has asked the process to stop."""


@cache
def event_log() -> AppendOnlyFile:
    """The event log: a file descriptor that child processes do not inherit, or standard output."""
    if EVENT_LOG not in os.environ:
        return AppendOnlyFile(1)
    descriptor = int(os.environ.pop(EVENT_LOG))
    os.set_inheritable(descriptor, False)
    return AppendOnlyFile(descriptor)


def emit(event: Event) -> None:
    """Report an event. While the disk is full the process waits, as no further result could be written. A request to
    stop ends the waiting."""
    log = event_log()
    log.append(MARK + to_line(event))
    while log.disk_full and not _stop_requested.wait(FULL_S):
        log.flush()


def set_up(ask: Callable[[int, object], None]) -> None:
    """Install signal handlers, the event log and the watch of the parent process; `ask` is called with each signal that
    requests a stop."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as rlrun has it, which need not run on this machine
    _dump_stacks_on_signal()

    def end_waiting(number: int, frame: object) -> None:
        _stop_requested.set()
        ask(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end_waiting)
    event_log()
    _watch_parent()
    sys.excepthook = emit_crash
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


def emit_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an uncaught exception as an event, and its traceback in the log."""
    output = f"{kind.__name__}: {error}" if str(error) else kind.__name__
    if isinstance(error, Exception) and (location := Raised(error).own_line):
        output += f" ({location})"
    lines = tuple(error.lines) if isinstance(error, Problems) else (output,)
    emit(Crashed(lines=lines, cause=_cause_of(error)))
    traceback.print_exception(kind, error, trace)


def _cause_of(error: BaseException) -> CrashCause:
    if not isinstance(error, Problems):
        return "error"
    return "numbers" if any(problem.code == "not-finite" for problem in error.problems) else "configuration"


def run_main(main: Callable[[], int]) -> NoReturn:
    """Exit with the code that `main` returns, 2 on `Problems`, or 1 on another exception."""
    code = 1
    try:
        code = main()
    except Problems as problems:
        code = 2
        emit_crash(Problems, problems, None)
    finally:
        try:
            if error := sys.exc_info()[1]:
                emit_crash(type(error), error, error.__traceback__)
        finally:  # also where that cannot be written
            exit_process(code)


def exit_process(code: int) -> NoReturn:
    """Exit without finalising the interpreter: torch's threads have aborted finished processes meanwhile."""
    machine.run_exit_handlers()
    os._exit(code)


def _watch_parent() -> None:
    """Exit at once when the parent process has ended, as nothing reads the output any more."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    if os.environ.get(LIFELINE):
        threading.Thread(target=watch, daemon=True).start()


def _dump_stacks_on_signal() -> None:
    """Write the stacks of all threads on SIGUSR1."""
    if STACK_FILE in os.environ:
        descriptor = int(os.environ.pop(STACK_FILE))
        os.set_inheritable(descriptor, False)
        faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)
