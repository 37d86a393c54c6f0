"""A run as programs handle it: plan it, submit it, resume it, stop it, read its events.

Each function may be called many times, from any thread; none handles a signal, and none waits for training. A submitted
run is `rlrun train` as a process of this machine, in a session of its own; on a Ray cluster it starts the others.

runs/<project>/<experiment>/detached.log     the output of the process
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.clusters import slurm
from launcher.core import machine
from launcher.core.events import LoggedEvent, LogReader
from launcher.core.problems import OnMessage, Problems
from launcher.launch.queue import RunCommand, RunProcess
from launcher.launch.start import run_of
from launcher.preflight import plan as planning
from launcher.preflight.plan import Page, ready_from
from launcher.runs import store
from launcher.runs.folder import Folder, free_name, holder, in_use, writer_lives
from launcher.runs.stop_requests import StopMode
from launcher.spec.run import RunSpec

POLL_S, STOP_S = 0.1, 60.0
HasBegun = Callable[[bool], bool]
"""Tells whether the run has begun, given whether the new process holds the folder's lock."""


@dataclass(frozen=True)
class StartRequest:
    """A run that a person asks for: arguments as after `rlrun train`, and where their own config files are."""

    arguments: tuple[str, ...] = ()
    config_dir: Path | None = None


@dataclass
class Submitted:
    """A run that was handed to a process of its own."""

    folder: Folder
    has_begun: HasBegun
    process: RunProcess

    def wait_until_begun(self, say: OnMessage) -> int | None:
        """Pass on what the process prints until the run has begun; its exit code where it ended before that.

        Ctrl-C until then ends the run.
        """
        expected_holder = {"pid": self.process.pid, "host": socket.gethostname()}
        return _wait_until_begun(self.process, lambda: self.has_begun(holder(self.folder) == expected_holder), say)


def plan(request: StartRequest) -> Page:
    """What would run, and what would fail."""
    return planning.plan(list(request.arguments), request.config_dir)


def submit(request: StartRequest) -> Submitted:
    """Start a new run. Raises `Problems` with all that `plan` would find, before anything is written."""
    run = ready_from(request.arguments, request.config_dir).run
    assert run
    trainer = run.trainer
    config = ["--config-dir", str(request.config_dir)] if request.config_dir else []
    folder = _new_folder(run)
    name = [] if trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    return _submit(folder, [*config, *request.arguments, *name])


def resume(folder: Folder, overrides: Sequence[str] = (), from_step: int | None = None) -> Submitted:
    """Go on with a run. Raises `Problems` where it is running, or cannot be read; the new process reports all others,
    also by its exit code."""
    folder.check()
    run_of(folder, overrides)
    from_option = [] if from_step is None else ["--from", str(from_step)]
    return _submit(folder, ["--resume", str(folder.path), *from_option, *overrides])


def resume_sweep(path: Path, parallel: int | None = None) -> Submitted:
    """Go on with a sweep. Raises `Problems` where it is running."""
    parallel_option = [] if parallel is None else ["--parallel", str(parallel)]
    process = _start_here(Folder(path), ["--resume", str(path), *parallel_option])
    return Submitted(Folder(path), lambda locked: locked, process)


def stop(folder: Folder, mode: StopMode = "save", wait_s: float = 60.0) -> str:
    """Ask a run to save and end, or to end at once (`now`). Returns what happened within `wait_s`."""
    return store.stop(folder, now=mode == "now", wait_s=wait_s)


def tail(folder: Folder, after_seq: int = -1) -> list[LoggedEvent]:
    """The events that were logged after the one with the `seq` `after_seq`; all of them by default."""
    return list(LogReader(folder.events, after=after_seq).new())


# ---- starting it


def _submit(folder: Folder, words: Sequence[str]) -> Submitted:
    attempt, job = folder.next_attempt, slurm.job_of(folder.path)

    def has_begun(locked: bool) -> bool:
        """Once its first attempt has a folder, or once it is in a queue."""
        return (locked and folder.next_attempt > attempt) or slurm.job_of(folder.path) != job

    return Submitted(folder, has_begun, _start_here(folder, words))


def _start_here(folder: Folder, words: Sequence[str]) -> RunProcess:
    folder.check()
    if writer_lives(folder):
        raise Problems(in_use(folder))
    return RunProcess(RunCommand(tuple(words), folder.detached))


def _new_folder(run: RunSpec) -> Folder:
    """A new folder for the run; where its name is chosen here, no other run has it."""
    trainer = run.trainer
    root, name = Path(trainer.run_root).expanduser(), trainer.experiment_name
    while True:
        folder = Folder(root / trainer.project_name / (name or free_name(root, trainer.project_name, run.label)))
        folder.check_no_link()
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=name is not None)
        except FileExistsError:
            if name is not None:
                raise
        else:
            return folder


# ---- until it has begun


def _wait_until_begun(process: RunProcess, is_begun: Callable[[], bool], say: OnMessage) -> int | None:
    """None once the run has begun; the exit code of a process that ended before. Ctrl-C until then ends it."""
    try:
        code = _say_lines(process, is_begun, say)
    except KeyboardInterrupt:
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        _say_lines(process, lambda: time.monotonic() > deadline, say)
        code = -signal.SIGINT
    return None if code is None else machine.shell_exit_code(code)


def _say_lines(process: RunProcess, is_ready: Callable[[], bool], say: OnMessage) -> int | None:
    """Pass on whole lines until `is_ready`, then return None; or until the process has ended: then pass on all lines,
    and return its exit code."""
    while True:
        code = process.poll()  # before the read: a process that has ended has written everything
        is_over = code is not None or is_ready()
        for line in process.lines(last=code is not None):
            say(line)
        if is_over:
            return code
        time.sleep(POLL_S)
