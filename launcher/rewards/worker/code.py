"""Runs programs and functions of answers under test, each in a forked process without any rights.

This process never holds expected results: outputs of programs are compared in the training process, and tests are read
from their file by the process that runs them, so no fork of this one can find them in its memory.
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
from launcher.sandbox import confine

MOST_OUTPUT = 4 * 2**20  # bytes of a program's output
LIBRARIES = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re", "string", "typing")
PRELUDE = f"import {', '.join(LIBRARIES)}\nfrom typing import *\nfrom collections import *"
"""Imports that a function may rely on: tasks often show its signature without them."""
Child = Callable[[], None]


def load(settings: Mapping[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """The handler of requests. Raises `OSError` where settings ask for a sandbox that this system lacks."""
    if settings["strict"] and (missing := confine.missing()):
        raise OSError(f"this system has no {' and no '.join(missing)}")
    os.environ.clear()  # it may hold secrets
    os.environ |= {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    readable = confine.readable()
    sys.path[:] = [path for path in sys.path if any(Path(path).resolve().is_relative_to(folder) for folder in readable)]
    sys.argv = ["solution.py"]
    rules = confine.ruleset(readable) if settings["strict"] else None
    limits = {**settings, "rules": rules}
    for name in LIBRARIES:
        importlib.import_module(name)  # once, instead of in every fork
    return lambda request: _run_programs(request, limits) if "inputs" in request else _run_tests(request, limits)


# ---- programs: standard input to standard output


def _run_programs(request: dict[str, Any], limits: Mapping[str, Any]) -> list[dict[str, str]]:
    """Output and error for each input; stops after the first failed run unless `all` is set."""
    runs = []
    for text in request["inputs"]:
        runs.append(_run_program(request["code"], text, limits))
        if runs[-1]["why"] and not request["all"]:
            break
    return runs


def _run_program(code: str, text: str, limits: Mapping[str, Any]) -> dict[str, str]:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.seek(0)
        input_file = os.dup(file.fileno())
    read_end, write_end = os.pipe()

    def child() -> None:
        _drop_rights({0: input_file, 1: write_end}, (), limits)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  they end with us
        original_stdout = sys.stdout
        try:
            _execute(code, {"__name__": "__main__", "__builtins__": builtins})
        finally:
            original_stdout.flush()  # the program may have replaced sys.stdout

    pid = _fork(child)
    os.close(input_file)
    os.close(write_end)
    deadline = time.monotonic() + limits["timeout_s"]
    output, why = _read_pipe(read_end, deadline, MOST_OUTPUT)
    os.close(read_end)
    return {"out": output.decode("utf-8", "replace"), "why": _wait_or_kill(pid, deadline, limits["timeout_s"], why)}


def _read_pipe(source: int, deadline: float, max_bytes: int) -> tuple[bytes, str]:
    """What is written to a pipe until it is closed, and what went wrong: too much output, or "late"."""
    output = bytearray()
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([source], [], [], left)[0]:
            break
        chunk = os.read(source, 2**16)
        if not chunk:
            return bytes(output), ""
        output += chunk
        if len(output) > max_bytes:
            return b"", f"printed more than {max_bytes} bytes"
    return bytes(output), "late"


def _wait_or_kill(pid: int, deadline: float, timeout_s: float, why: str) -> str:
    """Wait for the process, kill it and its group unless it ends in time; returns what went wrong."""
    status = None
    while not why and status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = code
        elif time.monotonic() > deadline:
            why = "late"
        else:
            time.sleep(0.0005)
    with suppress(ProcessLookupError, PermissionError):  # no process left, or its own group is not yet made
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if why:
        return f"took longer than {timeout_s:g} s" if why == "late" else why
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


# ---- functions, called by tests


def _run_tests(request: dict[str, Any], limits: Mapping[str, Any]) -> str:
    """A digit for each test that was run: 1 if it passed, else 0."""
    answering_end, calling_end = socket.socketpair()
    read_end, write_end = os.pipe()

    def solution() -> None:
        _drop_rights({}, (answering_end.fileno(),), limits)
        names = {"__name__": "solution", "__builtins__": builtins}
        _execute(PRELUDE, names)
        _execute(request["code"], names)
        serve(answering_end, names)

    def tests() -> None:
        test_node = json.loads(Path(request["tests"]).read_text(encoding="utf-8"))
        _drop_rights({}, (calling_end.fileno(), write_end), limits)
        run(test_node, calling_end, write_end)

    pids = [_fork(solution), _fork(tests)]
    answering_end.close()
    calling_end.close()
    os.close(write_end)
    deadline = time.monotonic() + limits["timeout_s"]
    output, why = _read_pipe(read_end, deadline, MOST_OUTPUT)
    os.close(read_end)
    _wait_or_kill(pids[1], deadline, limits["timeout_s"], why)
    _wait_or_kill(pids[0], 0.0, limits["timeout_s"], "over")
    return output.decode("ascii", "replace")


# ---- processes


def _fork(child: Child) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    confine.die_with_parent()
    code = 1
    try:
        sys.set_int_max_str_digits(0)
        result = try_call(child)
        code = int(isinstance(result, CallFailure) and result.kind != "SystemExit")
    finally:
        os._exit(code)


def _drop_rights(files: Mapping[int, int], keep: tuple[int, ...], limits: Mapping[str, Any]) -> None:
    """Drop all rights and close all descriptors but `keep`; `files` maps descriptors 0 to 2 to those they become."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(files.get(number, nothing), number)
    rules: int | None = limits["rules"]
    kept_files = [2, *sorted((*keep, *([] if rules is None else [rules]))), 2**20]
    for low, high in pairwise(kept_files):
        os.closerange(low + 1, high)
    confine.confine(confine.COMPUTE, limits, rules)
    if rules is None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # the limit does not hold for root


def _execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "solution.py", "exec"), names)
