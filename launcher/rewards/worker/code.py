"""Programs and functions of answers, run under test: each in a process of its own that has given everything up.

This process never holds what is expected of them: programs are compared where training is, and tests are read from
their file by the process that runs them, so no fork of this one can find them in its memory.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.rewards.worker.calls import serve
from launcher.rewards.worker.tests import run
from launcher.sandbox import confine, root

MOST_OUTPUT = 4 * 2**20  # bytes that a program may print
LIBRARIES = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re", "string", "typing")
PRELUDE = f"import {', '.join(LIBRARIES)}\nfrom typing import *\nfrom collections import *"
"""What a function may use without importing it, as its task showed only its head."""
Child = Callable[[], None]


def load(settings: Mapping[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Raises `OSError` where this system has no sandbox and one is asked for."""
    if settings["strict"] and (absent := confine.missing()):
        raise OSError(f"this system has no {' and no '.join(absent)}")
    os.environ.clear()  # what is a secret to us is one to them
    os.environ |= {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    places = confine.readable()
    sys.path[:] = [path for path in sys.path if any(_within(path, place) for place in places)]
    sys.argv = ["solution.py"]
    rules = confine.ruleset(places) if settings["strict"] else None
    limits = {**settings, "rules": rules, "root": root.make({*places, *sys.path}) if settings["strict"] else None}
    for name in LIBRARIES:
        importlib.import_module(name)  # once, and not in every process that is forked
    return lambda request: _programs(request, limits) if "inputs" in request else _tested(request, limits)


def _within(path: str, place: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), place]) == place


# ---- programs: standard input to standard output


def _programs(request: dict[str, Any], limits: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the program prints for each input, until one run fails and `all` does not ask for the others."""
    found = []
    for text in request["inputs"]:
        found.append(_program(request["code"], text, limits))
        if found[-1]["why"] and not request["all"]:
            break
    return found


def _program(code: str, text: str, limits: Mapping[str, Any]) -> dict[str, str]:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.seek(0)
        given = os.dup(file.fileno())
    ours, theirs = os.pipe()

    def child() -> None:
        _confined({0: given, 1: theirs}, (), limits)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  they end with us
        printed = sys.stdout
        try:
            _execute(code, {"__name__": "__main__", "__builtins__": builtins})
        finally:
            printed.flush()  # it may have put another one there

    pid = _forked(child)
    os.close(given)
    os.close(theirs)
    until = time.monotonic() + limits["timeout_s"]
    output, why = _read(ours, until, MOST_OUTPUT)
    os.close(ours)
    return {"out": output.decode("utf-8", "replace"), "why": _ended(pid, until, limits["timeout_s"], why)}


def _read(source: int, until: float, most: int) -> tuple[bytes, str]:
    """What is written there before it is closed, and what was wrong."""
    output = bytearray()
    while (left := until - time.monotonic()) > 0:
        if not select.select([source], [], [], left)[0]:
            break
        piece = os.read(source, 2**16)
        if not piece:
            return bytes(output), ""
        output += piece
        if len(output) > most:
            return b"", f"printed more than {most} bytes"
    return bytes(output), "late"


def _ended(pid: int, until: float, timeout_s: float, why: str) -> str:
    """Wait for the process, end it and its group where it does not end in time, and say what went wrong."""
    status = None
    while not why and status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = code
        elif time.monotonic() > until:
            why = "late"
        else:
            time.sleep(0.0005)
    with suppress(ProcessLookupError, PermissionError):  # all gone, or it has no group of its own yet
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if why:
        return f"took longer than {timeout_s:g} s" if why == "late" else why
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


# ---- functions, called by tests


def _tested(request: dict[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """How each test went (1 or 0), as far as they were run."""
    asked, asking = socket.socketpair()
    ours, theirs = os.pipe()

    def solution() -> None:
        _confined({}, (asked.fileno(),), limits)
        names = {"__name__": "solution", "__builtins__": builtins}
        _execute(PRELUDE, names)
        _execute(request["code"], names)
        serve(asked, names)

    def tests() -> None:
        given = json.loads(Path(request["tests"]).read_text(encoding="utf-8"))
        _confined({}, (asking.fileno(), theirs), limits)
        run(given, asking, theirs)

    pids = [_forked(solution), _forked(tests)]
    asked.close()
    asking.close()
    os.close(theirs)
    until = time.monotonic() + limits["timeout_s"]
    output, why = _read(ours, until, MOST_OUTPUT)
    os.close(ours)
    _ended(pids[1], until, limits["timeout_s"], why)
    _ended(pids[0], 0.0, limits["timeout_s"], "over")
    return {
        "passed": output.decode("ascii", "replace"),
        "why": f"took longer than {limits['timeout_s']:g} s" if why else "",
    }


# ---- processes


def _forked(child: Child) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    confine.die_with_parent()
    code = 1
    try:
        sys.set_int_max_str_digits(0)
        found = try_call(child)
        code = int(isinstance(found, CallFailure) and found.kind != "SystemExit")
    finally:
        os._exit(code)


def _confined(files: Mapping[int, int], keep: tuple[int, ...], limits: Mapping[str, Any]) -> None:
    """Give everything up but `files`, put to their numbers, and the descriptors to `keep`."""
    if limits["root"]:
        root.enter(limits["root"])
        confine.die_with_parent()  # which other privileges made the kernel forget
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(files.get(number, nothing), number)
    rules: int | None = limits["rules"]
    kept = [2, *sorted((*keep, *([] if rules is None else [rules]))), 2**20]
    for low, high in pairwise(kept):
        os.closerange(low + 1, high)
    confine.confine(confine.COMPUTE, limits, rules)
    if rules is None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # which root may pass


def _execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "solution.py", "exec"), names)
