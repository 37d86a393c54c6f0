"""A run without the terminal that it was typed in: `rlrun train` again, as a job of the Ray cluster that it trains on,
and otherwise as a process of this machine in a session of its own.

runs/<project>/<experiment>/detached.log     what it says there
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
from pathlib import Path
from typing import BinaryIO

from launcher.clusters import slurm
from launcher.clusters.nodes.reach import reach
from launcher.clusters.ray.handed import NO_JOBS, hand_over
from launcher.config.resolve import resolve
from launcher.core import machine
from launcher.core.problems import Problems
from launcher.launch.start import run_of
from launcher.preflight.plan import ready
from launcher.runs.folder import Folder, free_name, held, holder, writer_lives
from launcher.spec.run import RunSpec

POLL_S, PATIENCE_S = 0.1, 60.0
TRAIN = ("launcher", "train")

Say = Callable[[str], None]
"""Is told each line of the new process until the run is taken up."""

Taken = Callable[[bool], bool]
"""Whether it has been, by whether the new process holds the folder."""


@dataclass(frozen=True)
class Detached:
    folder: Folder
    exit_code: int | None
    """Of a run that has ended already, or was refused; None of one that goes on."""
    cluster: str | None = None
    """Address of the Ray cluster of which it is a job."""


def begin(words: Sequence[str], config_dir: Path | None, say: Say) -> Detached:
    """A new run. Raises `Problems` with all that can be known to speak against it before anything is made."""
    run = ready(resolve(words, config_dir)).run
    folder = _made(run)
    name = [] if run.trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    config = ["--config-dir", str(config_dir)] if config_dir else []
    return _run(folder, [*config, *words, *name], run.cluster.elsewhere, say)


def resume(folder: Folder, words: Sequence[str], say: Say) -> Detached:
    """A run that was begun before. Raises `Problems` where somebody is at it, or it cannot be read; what else speaks
    against it is said by the new process, whose exit code tells it."""
    folder.check()
    cluster = run_of(folder, words).cluster
    return _run(folder, ["--resume", str(folder.path), *words], cluster.elsewhere, say)


def sweep(path: Path, parallel: str | None, say: Say) -> Detached:
    """A sweep with a folder: it goes on with its points."""
    at_a_time = ["--parallel", parallel] if parallel else []
    return _here(Folder(path), ["--resume", str(path), *at_a_time], say, lambda held: held)


def _run(folder: Folder, typed: Sequence[str], cluster: str | None, say: Say) -> Detached:
    """It is taken up once its first processes are to be started, or once it waits in a queue for its time."""
    before, job = folder.next_attempt, slurm.job_of(folder.path)

    def taken(held: bool) -> bool:
        return (held and folder.next_attempt > before) or slurm.job_of(folder.path) != job

    if cluster and (handed := _there(folder, typed, cluster, say, taken)):
        return handed
    return _here(folder, typed, say, taken)


def _made(run: RunSpec) -> Folder:
    """The run's folder, which holds nothing yet; one whose name is made here is nobody else's."""
    trainer = run.trainer
    root, name = Path(trainer.run_root).expanduser(), trainer.experiment_name
    while True:
        folder = Folder(root / trainer.project_name / (name or free_name(root, trainer.project_name, run.label)))
        if problem := folder.symlink_problem():
            raise Problems([problem])
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=name is not None)
        except FileExistsError:
            if name is not None:
                raise
        else:
            return folder


def _here(folder: Folder, typed: Sequence[str], say: Say, taken: Taken) -> Detached:
    """As a process of this machine."""
    with _log(folder) as log:
        end = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *TRAIN, *typed], env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    its = {"pid": process.pid, "host": socket.gethostname()}
    return Detached(folder, _Heard(folder.detached, end, say).taken_up(process, lambda: taken(holder(folder) == its)))


def _there(folder: Folder, typed: Sequence[str], cluster: str, say: Say, taken: Taken) -> Detached | None:
    """As a job of the cluster; None where it takes none. Raises `Problems` where there is no such cluster."""
    reached = reach(cluster)
    with _log(folder) as log:
        end = log.tell()
        process = hand_over(folder.path, [*TRAIN, *typed], reached, log.fileno())
    if process is None:
        say("one of the words is a secret, which no file may hold")
    else:
        try:
            code = _Heard(folder.detached, end, say).taken_up(process, lambda: taken(True))
        finally:
            process.kill()  # the job does without
            process.wait()
        if code != NO_JOBS:
            return Detached(folder, code, reached.address)
    say("so it becomes a process of this machine")
    return None


def _log(folder: Folder) -> BinaryIO:
    """Open at its end. Raises `Problems` where somebody is at the folder."""
    folder.check()
    if writer_lives(folder):
        raise Problems([held(folder)])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.fdopen(os.open(folder.detached, flags, 0o600), "wb")
    log.seek(0, os.SEEK_END)
    return log


class _Heard:
    """What is written to a log from byte `offset` on."""

    def __init__(self, log: Path, offset: int, say: Say) -> None:
        self._log, self._offset, self._say = log, offset, say

    def taken_up(self, process: subprocess.Popen[bytes], taken: Callable[[], bool]) -> int | None:
        """None once it is `taken`; the exit code of one that ended before. Ctrl-C until then ends it."""
        try:
            code = self.until(process, taken)
        except KeyboardInterrupt:  # it was not handed over yet
            process.terminate()
            give_up = time.monotonic() + PATIENCE_S
            self.until(process, lambda: time.monotonic() > give_up)
            code = -signal.SIGINT
        return None if code is None else machine.shell_exit_code(code)

    def until(self, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> int | None:
        """Say whole lines until `ready`, or until the process has ended: then all lines, and its exit code is told."""
        while True:
            code = process.poll()  # asked first: one that has ended has said everything
            over = code is not None or ready()
            with self._log.open("rb") as file:
                file.seek(self._offset)
                *whole, half = file.read().splitlines(keepends=True) or [b""]
            if half.endswith(b"\n") or code is not None:
                whole.append(half)
            self._offset += sum(map(len, whole))
            for line in filter(None, whole):
                self._say(line.decode("utf-8", "replace").rstrip("\n"))
            if over:
                return code
            time.sleep(POLL_S)
