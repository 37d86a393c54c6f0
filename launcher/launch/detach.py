"""A run that goes on without its terminal: `rlrun train` again, as a process in a session of its own.

It is started on this machine, or by a job of the Ray cluster that it trains on, on the head: the job ends once the run
has begun, and is `python -m launcher.launch.detach FOLDER WORDS` there.

runs/<project>/<experiment>/detached.log     the output of the process
"""

from __future__ import annotations

import os
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
from launcher.core import machine
from launcher.core.files import NewLines
from launcher.core.problems import OnMessage, Problems
from launcher.launch.start import run_of
from launcher.preflight.plan import ready_from
from launcher.runs.folder import Folder, free_name, holder, in_use, writer_lives
from launcher.spec.run import RunSpec

POLL_S, STOP_S = 0.1, 60.0
TRAIN = ("launcher", "train")

Process = subprocess.Popen[bytes]

HasBegun = Callable[[bool], bool]
"""Whether the run has, given whether the new process holds the folder's lock."""


@dataclass(frozen=True)
class Detached:
    folder: Folder
    exit_code: int | None
    """Of a run that has ended already, or was refused; None of one that goes on."""
    cluster: str | None = None
    """Address of the Ray cluster on whose head it runs."""


def begin(overrides: Sequence[str], config_dir: Path | None, say: OnMessage) -> Detached:
    """A new run. Raises `Problems` with all that `rlrun plan` would find, before anything is written."""
    run = ready_from(overrides, config_dir).run
    folder = _new_folder(run)
    name = [] if run.trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    config = ["--config-dir", str(config_dir)] if config_dir else []
    return _run(folder, [*config, *overrides, *name], run.cluster.remote_address, say)


def resume(folder: Folder, overrides: Sequence[str], say: OnMessage, from_step: int | None = None) -> Detached:
    """Resume a run. Raises `Problems` where it is running, or cannot be read; the new process reports all others, also
    by its exit code."""
    folder.check()
    cluster = run_of(folder, overrides).cluster
    at = [] if from_step is None else ["--from", str(from_step)]
    return _run(folder, ["--resume", str(folder.path), *at, *overrides], cluster.remote_address, say)


def sweep(path: Path, parallel: str | None, say: OnMessage) -> Detached:
    """Resume a sweep."""
    at_a_time = ["--parallel", parallel] if parallel else []
    return _start_here(Folder(path), ["--resume", str(path), *at_a_time], say, lambda locked: locked)


def _run(folder: Folder, typed: Sequence[str], cluster: str | None, say: OnMessage) -> Detached:
    if cluster and (begun := _start_on_head(folder, typed, cluster, say)):
        return begun
    return _start_here(folder, typed, say, _run_begins(folder))


def _run_begins(folder: Folder) -> HasBegun:
    """Once its first attempt has a folder, or once it is in a queue."""
    before, job = folder.next_attempt, slurm.job_of(folder.path)
    return lambda locked: (locked and folder.next_attempt > before) or slurm.job_of(folder.path) != job


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


def _start_here(folder: Folder, typed: Sequence[str], say: OnMessage, has_begun: HasBegun) -> Detached:
    """As a process of this machine. Raises `Problems` where the run is being written."""
    _check_free(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(folder.detached, flags, 0o600), "wb") as log:
        end = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *TRAIN, *typed], env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    its = {"pid": process.pid, "host": socket.gethostname()}
    log_lines = NewLines(folder.detached, end)
    return Detached(folder, _until_begun(process, log_lines, lambda: has_begun(holder(folder) == its), say))


def _start_on_head(folder: Folder, typed: Sequence[str], cluster: str, say: OnMessage) -> Detached | None:
    """By a job of the cluster; None where it takes none. Raises `Problems` where there is no such cluster, or the run
    is being written."""
    reached = reach(cluster)
    _check_free(folder)
    command = remote.detached_command(folder.path, [__name__, str(folder.path.absolute()), *typed])
    if command is None:
        say("an argument is a secret, which no job may hold")
    elif not serves_jobs():
        say(f"ray[default] is not installed, so no job can be submitted: {remote.INSTALL}")
    else:
        code = _until_job_ends(remote.start(reached, command), say)
        if code != remote.NOT_RUN:
            return Detached(folder, code or None, reached.address)
    say("starting it on this machine instead")
    return None


def _until_job_ends(client: subprocess.Popen[str], say: OnMessage) -> int:
    """Its exit code. Ctrl-C until then stops the job."""
    assert client.stdout
    try:
        for line in client.stdout:
            say(line.rstrip("\n"))
        return client.wait()
    except KeyboardInterrupt:
        client.terminate()
        client.wait()
        return machine.shell_exit_code(-signal.SIGINT)


def _check_free(folder: Folder) -> None:
    folder.check()
    if writer_lives(folder):
        raise Problems(in_use(folder))


def _until_begun(process: Process, log: NewLines, has_begun: Callable[[], bool], say: OnMessage) -> int | None:
    """None once the run has begun; the exit code of a process that ended before. Ctrl-C until then ends it."""
    try:
        code = _follow(process, log, has_begun, say)
    except KeyboardInterrupt:
        process.terminate()
        give_up = time.monotonic() + STOP_S
        _follow(process, log, lambda: time.monotonic() > give_up, say)
        code = -signal.SIGINT
    return None if code is None else machine.shell_exit_code(code)


def _follow(process: Process, log: NewLines, ready: Callable[[], bool], say: OnMessage) -> int | None:
    """Say whole lines until `ready`, or until the process has ended: then all lines, and its exit code is returned."""
    while True:
        code = process.poll()  # before the read: a process that has ended has written everything
        over = code is not None or ready()
        for line in log.read(last=code is not None):
            say(line)
        if over:
            return code
        time.sleep(POLL_S)


def main(folder: str, typed: Sequence[str]) -> int:
    """On the head: 0 once the run has begun there, else its exit code."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    run = Folder(Path(folder))
    try:
        return _start_here(run, typed, partial(print, flush=True), _run_begins(run)).exit_code or 0
    except Problems as problems:
        print("\n".join(problems.lines))
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
