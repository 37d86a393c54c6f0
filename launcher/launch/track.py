"""The trackers of a run that trains here: one process each (`launcher.trackers.sending`), started, restarted and ended
without ever keeping the run waiting.

logs/tracker-NAME.log     the output of the process
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from launcher.clusters.local import start_log_redactor
from launcher.core.events import LoggedEvent
from launcher.core.state import RunState, Sink, write_all
from launcher.launch.supervise import LONGEST_PAUSE_S, pause_s
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec
from launcher.spec.trackers import trackers_of
from launcher.trackers.sending import FINISH_S

LOOK_S = 1.0  # between two looks at the processes
KILLED_S = 1.0  # after FINISH_S, in which a process ends by itself
CANNOT_WORK = 2  # exit code of a process that is not started again


@dataclass
class TrackerProcess:
    """One tracker. A process that dies is started again: at once, then after 1, 2, 4, ... seconds."""

    name: str
    folder: Folder
    output: int
    """Descriptor of its standard output and error."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    next_at: float = 0.0
    """When it may be started again."""

    def look(self, now: float) -> None:
        """Start the process where it does not run and its pause is over."""
        if self.process and (code := self.process.poll()) is not None:
            self.process = None
            self.next_at = float("inf") if code == CANNOT_WORK else now + pause_s(self.starts)
        if self.process or now < self.next_at:
            return
        self.starts = min(self.starts + 1, 10)
        argv = [sys.executable, "-P", "-m", "launcher.trackers.sending", self.name, str(self.folder.path)]
        try:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=self.output, stderr=self.output, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except OSError:  # no process can be started now
            self.next_at = now + LONGEST_PAUSE_S

    def wait(self, until: float) -> bool:
        """Wait for the exit of the process, which is killed at the monotonic time `until`. Returns whether everything
        has arrived."""
        if not self.process:
            return False
        try:
            return self.process.wait(max(until - time.monotonic(), 0.0)) == 0
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return False


class TrackerProcesses:
    """A sink of the run that keeps its tracker processes running; they read events from the log."""

    def __init__(self, names: Sequence[str], folder: Folder) -> None:
        logs = folder.path / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        pipes = [os.pipe() for _ in names]
        self._redactor = start_log_redactor(pipes, [logs / f"tracker-{name}.log" for name in names], dict(os.environ))
        self._outputs = [output for _, output in pipes]
        self.processes = [TrackerProcess(name, folder, out) for name, out in zip(names, self._outputs, strict=True)]
        self._looked_at = -LOOK_S
        self.state = RunState()
        """The latest state of the run."""
        self.late: list[str] = []
        """Names of trackers to which not everything has arrived; known at the end."""

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        self.state, now = state, time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            for process in self.processes:
                process.look(now)

    def close(self) -> None:
        """Ask the trackers to send the rest and exit; returns once all have, at the latest after `FINISH_S` and a
        moment."""
        for process in self.processes:
            if process.process and process.process.stdin:
                process.process.stdin.close()
        until = time.monotonic() + FINISH_S + KILLED_S
        self.late += [process.name for process in self.processes if not process.wait(until)]
        while self._outputs:
            os.close(self._outputs.pop())
        with suppress(subprocess.TimeoutExpired):
            self._redactor.wait(KILLED_S)


@contextmanager
def tracked(run: RunSpec, folder: Folder, sinks: Sequence[Sink]) -> Iterator[list[Sink]]:
    """The sinks of a run, with one that looks after the trackers of `trainer.logger`; they end with the block."""
    names = trackers_of(run.trainer.logger)
    if not names:
        yield [*sinks]
        return
    processes = TrackerProcesses(names, folder)
    try:
        yield [*sinks, processes]
    finally:
        processes.close()
        lines = [
            f"{name}: not everything has arrived, see logs/tracker-{name}.log;"
            f" rlrun track {folder.path} --to {name} sends the rest"
            for name in processes.late
        ]
        write_all(sinks, processes.state, [], lines)
