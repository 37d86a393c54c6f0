"""A run without the terminal that it was typed in: `rlrun train` again, in a session of its own.

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

from launcher.launch.folder import Folder, free_name, held, holder, writer_lives
from launcher.launch.plan import ready
from launcher.launch.resolve import resolve
from launcher.problems import Problems
from launcher.spec.run import RunSpec

POLL_S = 0.1

Say = Callable[[str], None]
"""Is told each line of the new process until the run is taken up."""


@dataclass(frozen=True)
class Detached:
    folder: Folder
    exit_code: int | None
    """Of a run that has ended already, or was refused; None of one that goes on."""


def begin(words: Sequence[str], config_dir: Path | None, say: Say) -> Detached:
    """A new run. Raises `Problems` with all that can be known to speak against it before anything is made."""
    run = ready(resolve(words, config_dir)).run
    folder = _made(run)
    name = [] if run.trainer.experiment_name else [f"trainer.experiment_name={folder.path.name}"]
    config = ["--config-dir", str(config_dir)] if config_dir else []
    return _run(folder, [*config, *words, *name], say)


def resume(folder: Folder, words: Sequence[str], say: Say) -> Detached:
    """A run that was begun before. Raises `Problems` where somebody is at it; what else speaks against it is said by
    the new process, whose exit code tells it."""
    return _run(folder, ["--resume", str(folder.path), *words], say)


def sweep(path: Path, parallel: str | None, say: Say) -> Detached:
    """A sweep with a folder: it goes on with its points."""
    at_a_time = ["--parallel", parallel] if parallel else []
    return _go_on(Folder(path), ["--resume", str(path), *at_a_time], say, lambda: True)


def _run(folder: Folder, typed: Sequence[str], say: Say) -> Detached:
    """It is taken up once its first processes are to be started."""
    before = folder.next_attempt
    return _go_on(folder, typed, say, lambda: folder.next_attempt > before)


def _made(run: RunSpec) -> Folder:
    """The run's folder, which holds nothing yet; one whose name is made here is nobody else's."""
    trainer = run.trainer
    root, name = Path(trainer.run_root).expanduser(), trainer.experiment_name
    while True:
        folder = Folder(root / trainer.project_name / (name or free_name(root, trainer.project_name, run.label)))
        if led := folder.led_away():
            raise Problems([led])
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=name is not None)
        except FileExistsError:
            if name is not None:
                raise
        else:
            return folder


def _go_on(folder: Folder, typed: Sequence[str], say: Say, began: Callable[[], bool]) -> Detached:
    folder.check()
    if writer_lives(folder):
        raise Problems([held(folder)])
    log = os.open(folder.detached, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    end = os.fstat(log).st_size
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher", "train", *typed], env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    os.close(log)
    its = {"pid": process.pid, "host": socket.gethostname()}
    heard = _Heard(folder.detached, end, say)
    try:
        code = heard.until(process, lambda: began() and holder(folder) == its)
    except KeyboardInterrupt:  # it was not handed over yet
        process.terminate()
        heard.until(process, lambda: False)
        code = -signal.SIGINT
    return Detached(folder, 128 - code if code is not None and code < 0 else code)


class _Heard:
    """What is written to a log from byte `offset` on."""

    def __init__(self, log: Path, offset: int, say: Say) -> None:
        self._log, self._offset, self._say = log, offset, say

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
