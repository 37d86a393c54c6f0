"""Runs sessions of an environment in subprocesses: one that hangs, dies or leaks fails its episodes, and is
restarted."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import count
from typing import Any

from launcher.core.settings import Chosen, adapter
from launcher.rewards.pool import end_group, exit_name, start_beside
from launcher.rewards.worker.frames import receive, send
from launcher.spec.data import Row
from launcher.spec.environment import Environment, Final, Observation, Outcome, Sessions, Spoken

WORKER = (sys.executable, "-P", "-m", "launcher.environments.worker")

LOAD_S = 120.0
"""Seconds in which an environment must be loaded."""
SILENT_S = 30.0
"""Seconds without a heartbeat after which a process is killed: its code holds the interpreter."""
STARTS = 3  # consecutive failed starts after which it is not started again


class Processes(Sessions):
    """Sessions on `workers` processes; each starts when a session is assigned to it."""

    def __init__(self, environment: Environment, program: Sequence[str] = WORKER) -> None:
        """`program` gets a socket's descriptor as its last argument, and follows the protocol of `WORKER`."""
        self.node = adapter(Chosen[Environment]).dump_python(environment, mode="json")
        self.workers = [_EnvironmentProcess(self.node, program) for _ in range(environment.workers)]
        self.held = dict[int, tuple[_EnvironmentProcess, int | None]]()
        """The process of each session, and which of its lives began it; None where it could not be started."""
        weakref.finalize(self, _end_all, self.workers)

    def begin(self, number: int, row: Row) -> Future[Observation]:
        worker = min(self.workers, key=lambda each: each.sessions)
        fault = worker.ready()
        worker.sessions += 1
        self.held[number] = worker, None if fault else worker.life
        return self._ask(number, Observation, "begin", row=asdict(row))

    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        return self._ask(number, Observation, "step", spoken=asdict(spoken))

    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        response = self._ask(number, Final, "end", outcome=outcome)
        worker, _ = self.held.pop(number)
        worker.sessions -= 1
        return response

    def _ask(self, number: int, kind: type, do: str, **values: Any) -> Future[Any]:
        """The response to a request about a session; a fault where the process that held it has ended."""
        worker, life = self.held[number]
        if life == worker.life:
            return worker.ask({"do": do, "session": number, **values}, kind)
        failed = Future[Any]()
        failed.set_result(_fault(kind, worker.why))
        return failed

    def close(self) -> None:
        _end_all(self.workers)

    def starve(self) -> None:
        for worker in self.workers:
            if not worker.ready():
                worker.ask({"do": "starve"}, Observation).result()

    def holds(self) -> Mapping[str, int]:
        import psutil  # noqa: PLC0415  late: an environment's process need not have it

        counts = Counter[str]()
        for worker in self.workers:
            if worker.process:
                info = psutil.Process(worker.process.pid)
                counts += Counter(bytes=info.memory_info().rss, files=info.num_fds(), threads=info.num_threads())
                counts["children"] += len(info.children(recursive=True))
            counts["silent_s"] = max(counts["silent_s"], int(worker.silent_s))
        return counts

    def tools(self) -> list[Mapping[str, Any]] | str:
        """The schemas of the environment's tools, read by a subprocess, or why it cannot be loaded."""
        worker = self.workers[0]
        return worker.ready() or worker.tools


class _EnvironmentProcess:
    """A subprocess, its pending requests, and a thread that reads its responses. `life` changes with each restart."""

    def __init__(self, node: Any, program: Sequence[str]) -> None:
        self.node, self.program, self.sessions, self.life = node, program, 0, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.waiting = dict[int, tuple[Future[Any], type]]()
        self.numbers, self.lock, self.failed = count(), threading.Lock(), 0
        self.tools: list[Mapping[str, Any]] = []
        self.why, self.silent_s = "the environment's process is not running", 0.0

    def ready(self) -> str:
        """Start it unless it is running. Returns why that failed, "" if it did not."""
        if self.process is not None and self.process.poll() is None and self.channel:
            return ""
        if self.failed >= STARTS:
            return self.why
        self.end("")
        self.process, self.channel = start_beside(self.program)
        try:
            deadline = time.monotonic() + LOAD_S
            send(self.channel, self.node, deadline)
            response = receive(self.channel, deadline)
            fault = response.get("fault", "")
        except (OSError, EOFError, ValueError) as error:
            response, fault = {}, "it takes too long" if isinstance(error, TimeoutError) else "its process ended"
        if fault:
            self.failed += 1
            self.end(f"the environment cannot be loaded: {fault}")
            return self.why
        self.failed, self.tools, self.life = 0, response["tools"], self.life + 1
        threading.Thread(target=self._read_responses, args=(self.channel, self.life), daemon=True).start()
        return ""

    def ask(self, frame: dict[str, Any], kind: type) -> Future[Any]:
        """Send a request. The future gets the response as a `kind`, which holds a fault where the process fails."""
        future = Future[Any]()
        with self.lock:
            number, channel = next(self.numbers), self.channel
            self.waiting[number] = future, kind
        why = "the environment's process has ended"
        try:
            if channel:
                send(channel, {**frame, "id": number}, time.monotonic() + SILENT_S)
                return future
        except OSError:
            why = "the environment's process does not take what it is asked"
        self.end(why)
        return future

    def _read_responses(self, channel: socket.socket, life: int) -> None:
        """Read responses until the process ends or is silent for SILENT_S."""
        why = ""
        while True:
            try:
                begun = time.monotonic()
                response = receive(channel, begun + SILENT_S)
                self.silent_s = max(self.silent_s, time.monotonic() - begun)
                if "id" in response:
                    with self.lock:
                        future, kind = self.waiting[response["id"]]
                    value = adapter(kind).validate_python(response["value"])
                    if self.waiting.pop(response["id"], None):
                        future.set_result(value)
            except TimeoutError:
                why = f"the environment said nothing for {SILENT_S:g} s: its code holds the interpreter"
                break
            except (OSError, EOFError):
                break
            except (LookupError, TypeError, ValueError):
                why = "the environment's process says what is no answer"
                break
        self.end(why, life)

    def end(self, why: str, life: int | None = None) -> None:
        """Kill its process group, and fail all pending requests with `why`, by default how it ended. Does nothing where
        `life` is that of an earlier process."""
        with self.lock:
            if life not in (None, self.life):
                return
            process, self.process, channel, self.channel = self.process, None, self.channel, None
            waiting, self.waiting = self.waiting, {}
            self.life += 1
        if channel:
            channel.close()
        if process:
            code = end_group(process)
            self.why = why or f"the environment's process ended with {exit_name(code)}"
        for future, kind in waiting.values():
            future.set_result(_fault(kind, self.why))


def _fault(kind: type, why: str) -> Observation | Final:
    return Observation(ended="environment-fault", reason=why) if kind is Observation else Final(fault=why)


def _end_all(workers: list[_EnvironmentProcess]) -> None:
    for worker in workers:
        worker.end("the run has ended")
