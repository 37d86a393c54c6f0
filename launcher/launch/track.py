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


class TrackerProcess:
    """One tracker. A process that dies is started again: at once, then after 1, 2, 4, ... seconds."""

    def __init__(self, name: str, folder: Folder, output: int) -> None:
        self.name, self.folder, self._output = name, folder, output
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._next_at = 0, 0.0
        self.complete = False
        """Whether everything has arrived; known at the end."""

    def look(self, now: float) -> None:
        """Start the process where it does not run and its pause is over."""
        if self._process and (code := self._process.poll()) is not None:
            self._process = None
            self._next_at = float("inf") if code == CANNOT_WORK else now + pause_s(self._starts)
        if not self._process and now >= self._next_at:
            self._start(now)

    def _start(self, now: float) -> None:
        self._starts = min(self._starts + 1, 10)
        argv = [sys.executable, "-P", "-m", "launcher.trackers.sending", self.name, str(self.folder.path)]
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=self._output, stderr=self._output, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except OSError:  # no process can be started now
            self._next_at = now + LONGEST_PAUSE_S

    def finish(self) -> None:
        """Ask it to send the rest and exit."""
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def wait(self, until: float) -> None:
        """Wait for the exit of the process, which is killed at the monotonic time `until`."""
        if not self._process:
            return
        try:
            self.complete = self._process.wait(max(until - time.monotonic(), 0.0)) == 0
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


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

    def write(self, state: RunState, events: Sequence[LoggedEvent], lines: Sequence[str]) -> None:
        self.state, now = state, time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            for process in self.processes:
                process.look(now)

    def close(self) -> None:
        """End the trackers; returns once all have exited, at the latest after `FINISH_S` and a moment."""
        for process in self.processes:
            process.finish()
        until = time.monotonic() + FINISH_S + KILLED_S
        for process in self.processes:
            process.wait(until)
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
        late = [process.name for process in processes.processes if not process.complete]
        write_all(sinks, processes.state, [], [_late_line(name, folder) for name in late])


def _late_line(name: str, folder: Folder) -> str:
    fix = f"rlrun track {folder.path} --to {name} sends the rest"
    return f"{name}: not everything has arrived, see logs/tracker-{name}.log; {fix}"
