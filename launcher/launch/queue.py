"""Runs that wait: for room on this machine, or in the queue of a cluster.

On this machine each is an `rlrun train` in a session of its own, started when there is room. Nothing here owns a thread
or a signal: the caller decides when to look (`Queue.advance`), and passes signals on. A run in a cluster's queue is
submitted, and watched from here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.core import activity, machine
from launcher.core.files import NewLines
from launcher.core.state import Sink, write_all
from launcher.launch.follow import Outcome
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec

LIFELINE = "RLRUN_POINT"  # set where standard input of `rlrun train` is a pipe that only its parent holds
PROBLEM_MARK = "✗ "  # begins a line with a problem


def watch_lifeline() -> None:
    """If this process has a lifeline, have it save and end when the process at the other end is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.pop(LIFELINE, ""):  # its children have another standard input
        threading.Thread(target=watch, daemon=True).start()


# ---- room


@dataclass(frozen=True)
class Needs:
    """What a run needs of this machine."""

    cores: int = 0
    """CPU cores; 0 means all: the run sets no number. `parallel` counts runs instead."""
    gpus: int = 0
    exclusive: bool = False
    """Whether it takes the machines of a cluster, so that none runs beside it."""


def needs(run: RunSpec) -> Needs:
    """The GPUs of `run`, and a core for each process with one; on a CPU the cores of its threads."""
    hardware = run.taken
    cores = hardware.processes_per_node * (run.engine.cores() if hardware.is_cpu else 1)
    return Needs(cores, hardware.n_gpus_per_node, exclusive=hardware.nnodes > 1 and not run.cluster.queues)


# ---- processes


class RunProcess:
    """`rlrun train` with these `words`, which works in `folder`, and appends its output to `log`.

    It has its own session, so that Ctrl-C in a terminal does not reach it. With `lifeline` its standard input is a pipe
    that only this process holds: when that is killed, the run saves and ends. `shared` are descriptors, such as locks,
    that stay open until it ends.
    """

    def __init__(
        self, words: Sequence[str], log: Path, folder: str | None = None, *,
        gpus: Sequence[str] | None = None, lifeline: bool = False, shared: Sequence[int] = (),
    ) -> None:  # fmt: skip
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", activity.QUIET: "1"}
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus is not None else {}
        environment |= {LIFELINE: "1"} if lifeline else {}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(log, flags, 0o600), "wb") as output:
            self._new_lines = NewLines(log, output.seek(0, os.SEEK_END))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launcher", "train", *words], cwd=folder, env=environment,
                stdin=subprocess.PIPE if lifeline else subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, pass_fds=shared,
            )  # fmt: skip
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code; None while it runs. After that `lines(last=True)` gives all of its output."""
        code = self._process.poll()
        if code is not None and self._process.stdin:
            self._process.stdin.close()
        return code

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return self._process.wait()

    def lines(self, *, last: bool) -> list[str]:
        """Lines printed since the last call; with `last` also one without a line end."""
        return list(self._new_lines.read(last=last))

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)


# ---- the queue


@dataclass(eq=False)
class QueuedRun:
    """An `rlrun train` in the queue; `words`, `log` and `folder` are as those of its process."""

    words: Sequence[str]
    log: Path
    folder: str | None
    needs: Needs
    gpus: tuple[str, ...] | None = None
    """Value of CUDA_VISIBLE_DEVICES; None leaves the variable as it is."""
    process: RunProcess | None = None
    """None while it waits."""
    exit_code: int | None = None
    """None until it has ended."""
    problem: str = ""
    """The last problem that it printed."""
    new_lines: list[str] = field(default_factory=list)
    """What it printed between the last two calls of `advance`."""
    delivered: int = 0
    """How many of the queue's requests to stop it has been sent."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.exit_code is None


class Queue:
    """Runs that wait for room on this machine, and those that have it; they end when this process is killed.

    At most `parallel` run at a time; with None as many as have cores. A GPU is never shared. A signal handler may call
    `stop` and `kill`.
    """

    def __init__(self, parallel: int | None, shared: Sequence[int] = ()) -> None:
        self.parallel, self._shared = parallel, shared
        self.cores, self.gpus = machine.cpu_count(), machine.visible_gpus()
        self.runs: list[QueuedRun] = []
        self._requests: list[int] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing runs, and nothing waits that would still be started."""
        waiting = not self._requests and any(run.process is None for run in self.runs)
        return not waiting and not any(run.is_running for run in self.runs)

    def advance(self) -> list[QueuedRun]:
        """Start what there is room for, read what was printed, and return the runs that began or ended."""
        running = [run for run in self.runs if run.is_running]
        changed = [run for run in self.runs if run.process is None and self._start(run, running)]
        for run in self.runs:
            run.new_lines = []
            if run.is_running and self._poll_run(run) and run not in changed:
                changed.append(run)
        return changed

    def _start(self, run: QueuedRun, running: list[QueuedRun]) -> bool:
        """Start the run where there is room beside those that are `running`, to which it is added then."""
        busy = {gpu for other in running for gpu in other.gpus or ()}
        free = tuple(gpu for gpu in self.gpus if gpu not in busy)
        if self._requests or (running and not self._fits(run.needs, running, len(free))):  # a single run always fits
            return False
        run.gpus = free[: run.needs.gpus] if 0 < run.needs.gpus <= len(free) else None
        run.process = RunProcess(run.words, run.log, run.folder, gpus=run.gpus, lifeline=True, shared=self._shared)
        self._send_requests(run)  # requests that arrived while the process was started
        running.append(run)
        return True

    def _fits(self, wanted: Needs, running: Sequence[QueuedRun], free_gpus: int) -> bool:
        """Whether there is room for a run beside those that are `running`."""
        unknown_gpus = any(other.needs.gpus and other.gpus is None for other in running)  # takes what there is
        if wanted.gpus > free_gpus or (unknown_gpus and wanted.gpus):
            return False
        together = [wanted, *(other.needs for other in running)]
        if any(needed.exclusive for needed in together):
            return False
        if self.parallel is not None:
            return len(running) < self.parallel
        return sum(needed.cores or self.cores for needed in together) <= self.cores

    def _poll_run(self, run: QueuedRun) -> bool:
        """Read the run's output. Returns whether it has ended."""
        assert run.process
        run.exit_code = run.process.poll()
        run.new_lines = run.process.lines(last=run.exit_code is not None)
        problems = [line.removeprefix(PROBLEM_MARK) for line in run.new_lines if line.startswith(PROBLEM_MARK)]
        run.problem = problems[-1] if problems else run.problem
        return run.exit_code is not None

    def stop(self, number: int) -> None:
        """Ask all running processes to save and end, by this signal, and start no other."""
        self._requests.append(number)
        for run in self.runs:
            self._send_requests(run)

    def kill(self) -> None:
        """Send a second signal, by which a run ends its processes at once."""
        self.stop(signal.SIGTERM)

    def _send_requests(self, run: QueuedRun) -> None:
        while run.process and run.exit_code is None and run.delivered < len(self._requests):
            number = self._requests[run.delivered]  # read first: a signal handler may call this in between
            run.delivered += 1
            run.process.signal(number)


# ---- the queue of a cluster

CODES = {"finished": 0, "failed": 1, "stopped": 128 + signal.SIGTERM}


def submit_and_follow(run: RunSpec, folder: Folder, sinks: Sequence[Sink]) -> Outcome:
    """Submit, and watch until the job has left the queue. Ctrl-C ends the watching only."""
    queued = run.cluster.submit(folder.name, folder.path, run.taken)
    try:
        state = store.watch(folder, sinks)
    except KeyboardInterrupt:
        state = replace(store.see(folder).state, why="")
        write_all(sinks, state, [], [f"{queued} continues; rlrun stop {folder.path} would end it"])
        return Outcome(128 + signal.SIGINT, state)
    return Outcome(CODES[state.status], state)
