"""Worker processes for rewards. One that hangs or crashes is killed and started again, so a request cannot block, slow
down or flood a training process beyond its time limit."""

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

LOAD_S = 120.0  # for what is imported; some rewards import torch
STARTS = 3  # in a row that fail, before it is not tried again
GIVE_UP = 8  # keys in a row that take too long, before the rest of a call is not asked about
SLOW_S = 5.0  # after which an answer that is waited for is reported
STACK_S, STACK_TRIES = 0.02, 10  # until a worker has said where it is
TWICE = 2  # times that one key may take too long


class Late(CallFailure):
    """The time limit was reached, by this request or by those before it."""


class Died(CallFailure):
    """The worker process ended."""


class Pool:
    """`workers` processes that answer requests of one kind (`worker/loop.py`). They start with the first request."""

    def __init__(
        self, kind: str, settings: Mapping[str, Any], workers: int, env: Mapping[str, str] | None = None
    ) -> None:
        """`env` None gives them this process's environment."""
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self.workers = workers
        started = [_Worker(kind, settings, env) for _ in range(workers)]
        for worker in started:
            self._free.put(worker)
        weakref.finalize(self, _end_all, started)

    def ask(
        self, requests: Sequence[Any], timeout_s: float, keys: Sequence[Hashable] | None = None
    ) -> list[Any | CallFailure]:
        """The answer to each request, in order, or why there is none; each may take `timeout_s`.

        Requests of one key are late for one reason: after TWICE the others are not asked. Where GIVE_UP keys in a row
        are late, nothing more is. By default each request has its own key.
        """
        late, row = Counter[Hashable](), set[Hashable]()

        def one(request: Any, key: Hashable) -> Any | CallFailure:
            times = GIVE_UP if len(row) >= GIVE_UP else TWICE if late[key] >= TWICE else 0
            if times:
                return Late(f"not asked: {times} before it took longer than {timeout_s:g} s")
            worker = self._free.get()
            try:
                answer = worker.ask(request, timeout_s, key)
            finally:
                self._free.put(worker)
            if isinstance(answer, Late):
                late[key] += 1
                row.add(key)
            else:
                late[key] = 0
                row.clear()
            return answer

        keys = range(len(requests)) if keys is None else keys
        if self.workers == 1 or len(requests) == 1:
            return list(map(one, requests, keys))
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(one, requests, keys))


def prompts(answers: Iterable[Answer]) -> list[Hashable]:
    """A key for each answer, equal for the answers to one prompt: the place of its row, where that is known."""
    return [answer.where or (answer.prompt, answer.ground_truth) for answer in answers]


class _Worker:
    def __init__(self, kind: str, settings: Mapping[str, Any], env: Mapping[str, str] | None) -> None:
        self.kind, self.settings, self.env = kind, settings, env
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.stack: IO[bytes] | None = None
        """Where it writes its line, once it is ready and asked."""
        self.name = Path(settings.get("file", settings.get("path", ""))).name
        self.failed = 0  # starts in a row
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
        """Start it; returns the reason where that failed. After repeated failures it is not started again."""
        ours, theirs = socket.socketpair()
        stack = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        with theirs:
            self.channel = ours
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launcher.rewards.worker.loop", self.kind, str(theirs.fileno()),
                 str(stack.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), stack.fileno()], start_new_session=True, env=self.env,
            )  # fmt: skip
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
        """Its reply to a request; if there is none, its process group is killed. One that takes long is reported."""
        assert self.channel
        begin = time.monotonic()
        until, pause, reported = begin + timeout_s, min(SLOW_S, timeout_s / 2), False
        try:
            send(self.channel, value, until)
            while self.name and not wait([self.channel], pause) and (left := until - time.monotonic()) > 0:
                pause, reported = min(2 * pause, left), True
                row = f", row {key}" if key and isinstance(key, str) else ""
                activity.report(f"reward {self._line() or self.name}{row}", time.monotonic() - begin)
            return receive(self.channel, until)
        except TimeoutError:
            line = f" ({found})" if (found := self._line()) else ""
            self.end()
            return Late(f"took longer than {timeout_s:g} s{line}")
        except (OSError, EOFError, ValueError):
            return Died(self.end())
        finally:
            if reported:
                activity.report("")

    def _line(self) -> str:
        """Where its function is at this moment: `my.py:12: time.sleep(60)`; empty where that is not known."""
        if self.stack and self.process and self.process.poll() is None:
            self.stack.truncate(0)
            self.process.send_signal(signal.SIGUSR1)
            for _ in range(STACK_TRIES):
                time.sleep(STACK_S)
                self.stack.seek(0)
                frames = re.findall(r'File "(.*)", line (\d+)', self.stack.read().decode("utf-8", "replace"))
                if own := own_places((file, int(number)) for file, number in frames):
                    return shown_line(*own[0])
        return ""

    def end(self) -> str:
        """Kill its process group, and return how it ended."""
        if self.process is None or self.channel is None:
            return ""
        self.channel.close()
        code = end_group(self.process)  # of a process that is ending by itself the code is settled already
        self.process = self.channel = self.stack = None
        if code >= 0:
            return f"its process ended with exit code {code}"
        known = [name.name for name in signal.Signals if name == -code]
        return f"its process was killed by {known[0] if known else f'signal {-code}'}"


def end_group(process: subprocess.Popen[bytes]) -> int:
    with suppress(ProcessLookupError, PermissionError):  # all gone; macOS says the latter of a group of the dead
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin:
        process.stdin.close()
    return process.wait()


def _end_all(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.process is not None:
            end_group(worker.process)
