"""Sessions of an environment in processes of its own: one that hangs, dies or leaks costs its episodes, and is started
again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from itertools import count
from typing import Any

from launcher.core.settings import Chosen, adapter
from launcher.rewards.pool import end_group
from launcher.rewards.worker.frames import receive, send
from launcher.spec.data import Row
from launcher.spec.environment import Environment, Final, Observation, Outcome, Sessions, Spoken

WORKER = (sys.executable, "-P", "-m", "launcher.environments.worker")

LOAD_S = 120.0
"""Seconds in which an environment must be loaded."""
SILENT_S = 30.0
"""Seconds without a line of life after which a process is ended: its code holds the interpreter."""
STARTS = 3  # in a row that fail, before it is not tried again

Failed = Callable[[str], Observation | Final]


class Processes(Sessions):
    """Sessions spread over `workers` processes, which start with the first session."""

    def __init__(self, environment: Environment, program: Sequence[str] = WORKER) -> None:
        """`program` is started with a descriptor as its last argument, and answers as `WORKER` does."""
        self.node = adapter(Chosen[Environment]).dump_python(environment, mode="json")
        self.workers = [_EnvironmentProcess(self.node, program) for _ in range(environment.workers)]
        self.held = dict[int, tuple[_EnvironmentProcess, int]]()
        weakref.finalize(self, _end_all, self.workers)

    def begin(self, number: int, row: Row) -> Future[Observation]:
        worker = min(self.workers, key=lambda each: each.sessions)
        fault = worker.ready()
        worker.sessions += 1
        self.held[number] = worker, worker.life
        if fault:
            return _done(_faulty_observation(fault))
        return worker.ask({"do": "begin", "session": number, "row": asdict(row)}, _faulty_observation, Observation)

    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        worker, life = self.held[number]
        if life != worker.life:
            return _done(_faulty_observation(worker.why))
        frame = {"do": "step", "session": number, "spoken": asdict(spoken)}
        return worker.ask(frame, _faulty_observation, Observation)

    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        worker, life = self.held.pop(number)
        worker.sessions -= 1
        if life != worker.life:
            return _done(_faulty_final(worker.why))
        return worker.ask({"do": "end", "session": number, "outcome": outcome}, _faulty_final, Final)

    def close(self) -> None:
        _end_all(self.workers)

    def starve(self) -> None:
        for worker in self.workers:
            if not worker.ready():
                worker.ask({"do": "starve"}, _faulty_observation, Observation).result()

    def holds(self) -> Mapping[str, int]:
        import psutil  # noqa: PLC0415  late: an environment's process need not have it

        found = Counter[str]()
        for worker in self.workers:
            if worker.process:
                of = psutil.Process(worker.process.pid)
                found += Counter(bytes=of.memory_info().rss, files=of.num_fds(), threads=of.num_threads())
                found["children"] += len(of.children(recursive=True))
        return found

    def tools(self) -> list[Mapping[str, Any]] | str:
        """The schemas of the environment's tools, as a process of its own reads them, or why it cannot be loaded."""
        worker = self.workers[0]
        return worker.ready() or worker.tools


class _EnvironmentProcess:
    """A process, its requests that wait, and a thread that reads what it says."""

    def __init__(self, node: Any, program: Sequence[str]) -> None:
        self.node, self.program, self.sessions, self.life = node, program, 0, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.waiting = dict[int, tuple[Future[Any], Failed, type]]()
        self.numbers, self.lock, self.failed = count(), threading.Lock(), 0
        self.tools: list[Mapping[str, Any]] = []
        self.why = "the environment's process is not running"

    def ready(self) -> str:
        """Start it where it is not running. Returns why that failed; empty where it did not."""
        if self.process is not None and self.process.poll() is None and self.channel:
            return ""
        if self.failed >= STARTS:
            return self.why
        self.end("")
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*self.program, str(theirs.fileno())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self.channel = ours
        try:
            until = time.monotonic() + LOAD_S
            send(ours, self.node, until)
            answer = receive(ours, until)
            fault = answer.get("fault", "")
        except (OSError, EOFError, ValueError) as error:
            answer, fault = {}, "it takes too long" if isinstance(error, TimeoutError) else "its process ended"
        if fault:
            self.failed += 1
            self.end(f"the environment cannot be loaded: {fault}")
            return self.why
        self.failed, self.tools, self.life = 0, answer["tools"], self.life + 1
        threading.Thread(target=self._read, args=(ours, self.life), daemon=True).start()
        return ""

    def ask(self, frame: dict[str, Any], failed: Failed, kind: type) -> Future[Any]:
        """What it answers, as a value of `kind`, or what `failed` makes of the reason why it does not."""
        future = Future[Any]()
        with self.lock:
            number, channel = next(self.numbers), self.channel
            self.waiting[number] = future, failed, kind
        why = "the environment's process has ended"
        try:
            if channel:
                send(channel, {**frame, "id": number}, time.monotonic() + SILENT_S)
                return future
        except OSError:
            why = "the environment's process does not take what it is asked"
        self.end(why)
        return future

    def _read(self, channel: socket.socket, life: int) -> None:
        """Its answers, until it ends or says nothing any more."""
        why = ""
        while True:
            try:
                answer = receive(channel, time.monotonic() + SILENT_S)
                if "id" in answer:
                    with self.lock:
                        future, _, kind = self.waiting[answer["id"]]
                    found = adapter(kind).validate_python(answer["value"])
                    if self.waiting.pop(answer["id"], None):
                        future.set_result(found)
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
        """End its process group; all that waits gets the reason, by default how it ended. Does nothing where it is not
        the process of that `life`."""
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
            self.why = why or f"the environment's process ended with {_ending(code)}"
        for future, failed, _ in waiting.values():
            future.set_result(failed(self.why))


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _done(value: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


def _faulty_observation(why: str) -> Observation:
    return Observation(ended="environment-fault", reason=why)


def _faulty_final(why: str) -> Final:
    return Final(fault=why)


def _end_all(workers: list[_EnvironmentProcess]) -> None:
    for worker in workers:
        worker.end("the run has ended")
