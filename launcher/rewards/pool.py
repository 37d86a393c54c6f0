"""Worker processes for rewards. One that hangs or crashes is killed and restarted, so a request cannot block, slow down
or flood a training process beyond its time limit."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from launcher.core import activity
from launcher.core.user_code import CallFailure, own_places, shown_line
from launcher.rewards.worker.frames import receive, send
from launcher.spec.reward import Answer

LOAD_S = 120.0  # to load a worker; some rewards import torch
STARTS = 3  # consecutive failed starts after which it is not started again
GIVE_UP = 8  # consecutive late keys after which the other requests of a call are not sent
SLOW_S = 5.0  # after which a pending request is reported
STACK_S, STACK_TRIES = 0.02, 10  # to wait for a worker's stack trace
TWICE = 2  # late requests of one key after which its others are not sent


class Late(CallFailure):
    """This request, or earlier ones because of which it was not sent, exceeded the time limit."""


class Died(CallFailure):
    """The worker process ended."""


class Pool:
    """`workers` processes that handle requests of one kind (`worker/loop.py`); each starts with its first request."""

    def __init__(
        self, kind: str, settings: Mapping[str, Any], workers: int, env: Mapping[str, str] | None = None
    ) -> None:
        """`settings` are sent to each worker; with `env` None they inherit this process's environment."""
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self.workers = workers
        all_workers = [_Worker(kind, settings, env) for _ in range(workers)]
        for worker in all_workers:
            self._free.put(worker)
        weakref.finalize(self, _end_all, all_workers)

    def ask(
        self, requests: Sequence[Any], timeout_s: float, keys: Sequence[Hashable] | None = None
    ) -> list[Any | CallFailure]:
        """The response to each request, in order, or the failure; each request may take `timeout_s` seconds.

        Requests with the same key tend to be late together: after TWICE the others are not sent. After GIVE_UP
        consecutive late keys nothing more is sent. By default each request has its own key.
        """
        late_counts, late_keys = Counter[Hashable](), set[Hashable]()

        def ask_worker(request: Any, key: Hashable) -> Any | CallFailure:
            reason_count = GIVE_UP if len(late_keys) >= GIVE_UP else TWICE if late_counts[key] >= TWICE else 0
            if reason_count:
                return Late(f"not asked: {reason_count} before it took longer than {timeout_s:g} s")
            worker = self._free.get()
            try:
                answer = worker.ask(request, timeout_s, key)
            finally:
                self._free.put(worker)
            if isinstance(answer, Late):
                late_counts[key] += 1
                late_keys.add(key)
            else:
                late_counts[key] = 0
                late_keys.clear()
            return answer

        keys = range(len(requests)) if keys is None else keys
        if self.workers == 1 or len(requests) == 1:
            return list(map(ask_worker, requests, keys))
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(ask_worker, requests, keys))


def prompts(answers: Iterable[Answer]) -> list[Hashable]:
    """A key for each answer, equal for the answers to one prompt: the file and line of its row, if known."""
    return [answer.where or (answer.prompt, answer.ground_truth) for answer in answers]


class _Worker:
    def __init__(self, kind: str, settings: Mapping[str, Any], env: Mapping[str, str] | None) -> None:
        self.kind, self.settings, self.env = kind, settings, env
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.stack: IO[bytes] | None = None
        """File for its stack trace on SIGUSR1; set once it is ready."""
        self.name = Path(settings.get("file", settings.get("path", ""))).name
        self.failed = 0  # consecutive failed starts
        self.broken: CallFailure | None = None

    def ask(self, request: Any, timeout_s: float, key: Hashable = "") -> Any | CallFailure:
        if self.process is None or self.process.poll() is not None:
            self.end()
            if fault := self.broken or self._start():
                return fault
        answer = self._exchange(request, timeout_s, key)
        if isinstance(answer, CallFailure):
            return answer
        return CallFailure(answer["fault"]) if "fault" in answer else answer["value"]

    def _start(self) -> CallFailure | None:
        """Start the process; returns the failure, if any. After STARTS failures it is not started again."""
        stack = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        program = [sys.executable, "-P", "-m", "launcher.rewards.worker.loop", self.kind, str(stack.fileno())]
        self.process, self.channel = start_beside(program, self.env, [stack.fileno()])
        answer = self._exchange(dict(self.settings), LOAD_S)
        fault = answer.reason if isinstance(answer, CallFailure) else answer.get("fault")
        if fault is None:
            self.failed, self.stack = 0, stack
            return None
        self.failed += 1
        failure = CallFailure(f"cannot be loaded: {fault}")
        if not isinstance(answer, CallFailure) or self.failed == STARTS:
            self.broken = failure
        self.end()
        return failure

    def _exchange(self, value: Any, timeout_s: float, key: Hashable = "") -> Any | CallFailure:
        """Send a request; returns the reply, or kills the process group and returns why. Slow requests are reported."""
        assert self.channel
        start = time.monotonic()
        deadline, pause, reported = start + timeout_s, min(SLOW_S, timeout_s / 2), False
        try:
            send(self.channel, value, deadline)
            while self.name and not wait([self.channel], pause) and (left := deadline - time.monotonic()) > 0:
                pause, reported = min(2 * pause, left), True
                row = f", row {key}" if key and isinstance(key, str) else ""
                activity.report(f"reward {self._current_line() or self.name}{row}", time.monotonic() - start)
            return receive(self.channel, deadline)
        except TimeoutError:
            line = f" ({current})" if (current := self._current_line()) else ""
            self.end()
            return Late(f"took longer than {timeout_s:g} s{line}")
        except (OSError, EOFError, ValueError):
            return Died(self.end())
        finally:
            if reported:
                activity.report("")

    def _current_line(self) -> str:
        """The line that its function runs now: `my.py:12: time.sleep(60)`; "" where it is unknown."""
        if self.stack and self.process and self.process.poll() is None:
            self.stack.truncate(0)
            self.process.send_signal(signal.SIGUSR1)
            for _ in range(STACK_TRIES):
                time.sleep(STACK_S)
                self.stack.seek(0)
                frames = re.findall(r'File "(.*)", line (\d+)', self.stack.read().decode("utf-8", "replace"))
                if places := own_places((file, int(number)) for file, number in frames):
                    return shown_line(*places[0])
        return ""

    def end(self) -> str:
        """Kill its process group, and return how it ended."""
        if self.process is None or self.channel is None:
            return ""
        self.channel.close()
        code = end_group(self.process)  # a process that has ended by itself keeps its own exit code
        self.process = self.channel = self.stack = None
        return f"its process {'ended with' if code >= 0 else 'was killed by'} {exit_name(code)}"


def start_beside(
    program: Sequence[str], env: Mapping[str, str] | None = None, files: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a program in a process group of its own, with these open files; its last argument is the descriptor of a
    socket, whose other end is returned. Its standard input is a pipe that ends when this process does."""
    local, remote = socket.socketpair()
    with remote:
        return subprocess.Popen(
            [*program, str(remote.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[remote.fileno(), *files], start_new_session=True, env=env,
        ), local  # fmt: skip


def end_group(process: subprocess.Popen[bytes]) -> int:
    with suppress(ProcessLookupError, PermissionError):  # no process left; macOS raises the latter for zombies
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin:
        process.stdin.close()
    return process.wait()


def exit_name(code: int) -> str:
    """How a process ended, by its exit code: that code, or the signal that killed it."""
    names = [one.name for one in signal.Signals if one == -code]
    return f"exit code {code}" if code >= 0 else names[0] if names else f"signal {-code}"


def _end_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.process is not None:
            end_group(worker.process)
