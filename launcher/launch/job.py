"""A run as programs handle it: plan it, submit it, resume it, stop it, read its events.

Each function may be called many times, from any thread; none handles a signal, and none waits for training. A submitted
run is `rlrun train` as a process in a session of its own, on this machine or, where the run trains on a Ray cluster, on
the head: a job of the cluster starts it there by `python -m launcher.launch.job FOLDER WORDS`, and ends once it began.

runs/<project>/<experiment>/detached.log     the output of the process
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.clusters import slurm
from launcher.clusters.nodes.home import reach
from launcher.clusters.nodes.processes import serves_jobs
from launcher.clusters.ray import remote
from launcher.clusters.ray.listing import check_address
from launcher.core import machine
from launcher.core.events import LoggedEvent, LogReader
from launcher.core.problems import OnMessage, Problem, Problems
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
    process: RunProcess | subprocess.Popen[str]
    """The run's, or the client that waits for the job of the cluster."""
    cluster: str | None = None
    """Address of the Ray cluster on whose head it runs; None for this machine."""

    def wait_until_begun(self, say: OnMessage) -> int | None:
        """Pass on what the process prints until the run has begun; its exit code where it ended before that.

        Ctrl-C until then ends the run.
        """
        if isinstance(self.process, subprocess.Popen):
            return _wait_for_job(self.process, say) or None
        expected_holder = {"pid": self.process.pid, "host": socket.gethostname()}
        return _wait_until_begun(self.process, lambda: self.has_begun(holder(self.folder) == expected_holder), say)


def plan(request: StartRequest) -> Page:
    """What would run, and what would fail."""
    return planning.plan(list(request.arguments), request.config_dir)


def submit(request: StartRequest) -> Submitted:
    """Start a new run. Raises `Problems` with all that `plan` would find, before anything is written."""
    run = ready_from(request.arguments, request.config_dir).run
    trainer = run.trainer
    config = ["--config-dir", str(request.config_dir)] if request.config_dir else []
    words = [*config, *request.arguments]
    names = [trainer.run_root, trainer.project_name, trainer.experiment_name or ""]
    _check_takes_jobs(run.cluster.remote_address, [*words, *names])
    folder = _new_folder(run)
    name = [] if trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    return _submit(folder, [*words, *name], run.cluster.remote_address)


def resume(folder: Folder, overrides: Sequence[str] = (), from_step: int | None = None) -> Submitted:
    """Go on with a run. Raises `Problems` where it is running, or cannot be read; the new process reports all others,
    also by its exit code."""
    folder.check()
    cluster = run_of(folder, overrides).cluster
    from_option = [] if from_step is None else ["--from", str(from_step)]
    words = ["--resume", str(folder.path), *from_option, *overrides]
    _check_takes_jobs(cluster.remote_address, words)
    return _submit(folder, words, cluster.remote_address)


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


def _submit(folder: Folder, words: Sequence[str], cluster: str | None) -> Submitted:
    attempt, job = folder.next_attempt, slurm.job_of(folder.path)

    def has_begun(locked: bool) -> bool:
        """Once its first attempt has a folder, or once it is in a queue."""
        return (locked and folder.next_attempt > attempt) or slurm.job_of(folder.path) != job

    if not cluster:
        return Submitted(folder, has_begun, _start_here(folder, words))
    reached = reach(cluster)
    _check_free(folder)
    command = remote.detached_command(folder.path, [__name__, str(folder.path.absolute()), *words])
    return Submitted(folder, has_begun, remote.start(reached, command), reached.address)


def _start_here(folder: Folder, words: Sequence[str]) -> RunProcess:
    _check_free(folder)
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


def _check_takes_jobs(cluster: str | None, words: Sequence[str]) -> None:
    """Raises `Problems` where a run on `cluster` cannot be submitted with these words."""
    if not cluster:
        return
    if not serves_jobs():
        got = "ray[default] is not installed, so no job can be submitted"
        raise Problems(Problem("-d", got, f"leave out -d, or {remote.INSTALL}", "not-installed"))
    remote.check_words(words)
    check_address(reach(cluster).address)


def _check_free(folder: Folder) -> None:
    folder.check()
    if writer_lives(folder):
        raise Problems(in_use(folder))


# ---- until it has begun


def _wait_for_job(client: subprocess.Popen[str], say: OnMessage) -> int:
    """The exit code of the job that starts the run. Ctrl-C until then stops the job."""
    assert client.stdout
    try:
        for line in client.stdout:
            say(line.rstrip("\n"))
        return client.wait()
    except KeyboardInterrupt:
        client.terminate()
        client.wait()
        return machine.shell_exit_code(-signal.SIGINT)


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


def main(folder: str, words: Sequence[str]) -> int:
    """On the head of a Ray cluster: 0 once the run has begun there, else its exit code."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        submitted = _submit(Folder(Path(folder)), words, None)
        return submitted.wait_until_begun(partial(print, flush=True)) or 0
    except Problems as problems:
        print("\n".join(problems.lines))
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
