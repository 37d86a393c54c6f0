"""A run as programs handle it: plan it, submit it, resume it, stop it. `runs.store` reads it.

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
from launcher.launch.queue import RunProcess
from launcher.launch.start import run_of
from launcher.preflight import plan as planning
from launcher.preflight.plan import Page, ready_from
from launcher.runs import store
from launcher.runs.folder import Folder, free_name, holder, in_use, writer_here
from launcher.runs.stop_requests import StopMode
from launcher.spec.run import RunSpec

POLL_S, STOP_S = 0.1, 60.0


@dataclass
class Submitted:
    """A run that was handed to a process of its own."""

    folder: Folder
    process: RunProcess
    has_begun: Callable[[bool], bool]
    """Tells whether the run has begun, given whether the process holds the folder's lock."""

    def wait_until_begun(self, say: OnMessage) -> int | None:
        """Pass on what the process prints until the run has begun; its exit code where it ended before that.

        Ctrl-C until then ends the run.
        """
        expected_holder = {"pid": self.process.pid, "host": socket.gethostname()}
        try:
            code = self._say_lines(lambda: self.has_begun(holder(self.folder) == expected_holder), say)
        except KeyboardInterrupt:
            self.process.signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            self._say_lines(lambda: time.monotonic() > deadline, say)
            return 128 + signal.SIGINT
        return None if code is None else machine.shell_exit_code(code)

    def _say_lines(self, is_ready: Callable[[], bool], say: OnMessage) -> int | None:
        """Pass on whole lines until `is_ready`, then return None; or until the process has ended: then pass on all
        lines, and return its exit code."""
        while True:
            code = self.process.poll()  # before the read: a process that has ended has written everything
            is_over = code is not None or is_ready()
            for line in self.process.lines(last=code is not None):
                say(line)
            if is_over:
                return code
            time.sleep(POLL_S)


def plan(arguments: Sequence[str], config_dir: Path | None = None) -> Page:
    """What would run with these arguments, as after `rlrun train`, and what would fail."""
    return planning.plan(list(arguments), config_dir)


def submit(arguments: Sequence[str], config_dir: Path | None = None) -> Submitted:
    """Start a new run. Raises `Problems` with all that `plan` would find, before anything is written."""
    run = ready_from(arguments, config_dir).run
    assert run
    config = ["--config-dir", str(config_dir)] if config_dir else []
    folder = _new_folder(run)
    name = [] if run.trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    return _submit(folder, [*config, *arguments, *name])


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
    return Submitted(Folder(path), process, lambda is_locked: is_locked)


def stop(folder: Folder, mode: StopMode = "save", wait_s: float = 60.0) -> str:
    """Ask a run to save and end, or to end at once (`now`). Returns what happened within `wait_s`."""
    return store.stop(folder, now=mode == "now", wait_s=wait_s)


def tail(folder: Folder, after_seq: int = -1) -> list[LoggedEvent]:
    """The events that were logged after the one with the `seq` `after_seq`; all of them by default."""
    return list(LogReader(folder.events, after_seq).new())


# ---- starting it


def _submit(folder: Folder, words: Sequence[str]) -> Submitted:
    attempt, job = folder.next_attempt, slurm.job_of(folder.path)

    def has_begun(is_locked: bool) -> bool:
        """Once its first attempt has a folder, or once it is in a queue."""
        return (is_locked and folder.next_attempt > attempt) or slurm.job_of(folder.path) != job

    return Submitted(folder, _start_here(folder, words), has_begun)


def _start_here(folder: Folder, words: Sequence[str]) -> RunProcess:
    folder.check()
    if writer_here(folder) is not None:
        raise Problems(in_use(folder))
    return RunProcess(words, folder.detached)


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
