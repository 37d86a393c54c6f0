"""A run's folder: its files, the lock of its writer, its attempts, and what the last one reported without a writer.

runs/<project>/<experiment>/  spec.yaml prepared.json words.txt lock.json events.jsonl summary.json console.log
                              checkpoints/ code/ eval_logs/
                              logs/attempt_N/rank-N.log
                              trackers/NAME.json logs/tracker-NAME.log
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

from launcher.core import machine
from launcher.core.bounded_parse import parse_json
from launcher.core.events import (
    LAUNCHER_EVENTS,
    Alert,
    Ended,
    Event,
    LogReader,
    Restarted,
    Step,
    events_of,
    is_damage,
)
from launcher.core.files import NewLines, PathIn, read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.spec.engine import marked_events

_EVALUATION = re.compile(r"eval_step_[0-9]{4,18}\.json")
_ATTEMPT = re.compile(r"attempt_[1-9][0-9]*")
LOGGED = b"origin: logger\n"  # begins the spec.yaml of a run that a script of another program reports
LOCK_WAIT_S = 10.0  # processes of a killed run end within moments; until then they hold the lock
LARGEST_PID = 2**31 - 1


@dataclass(frozen=True)
class Folder:
    path: Path

    spec = PathIn("spec.yaml")
    prepared = PathIn("prepared.json")
    words = PathIn("words.txt")
    lock = PathIn("lock.json")
    events = PathIn("events.jsonl")
    summary = PathIn("summary.json")
    console = PathIn("console.log")
    refused = PathIn("refused.jsonl")
    detached = PathIn("detached.log")  # output of `rlrun train -d`
    checkpoints = PathIn("checkpoints")
    evaluations = PathIn("eval_logs")  # of agents, one file for each validation
    code = PathIn("code")  # copies of the run's own Python files
    trackers = PathIn("trackers")  # what each tracker has been sent
    stop_request = PathIn(".stop")
    stopping = PathIn(".stopping")  # its writer was sent a signal to save and end

    @property
    def name(self) -> str:
        """project/experiment"""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def is_logged(self) -> bool:
        """Whether a script of another program reports here, whose settings are unknown."""
        with suppress(OSError):
            return read_file(self.spec).startswith(LOGGED)
        return False

    def check_no_link(self) -> None:
        """Raises `Problems` where a new run must not be made here. The folder that holds all runs may be a link."""
        for path in (self.path.parent, self.path):
            if path.is_symlink():
                got = f"{path} is a link to another folder"
                raise Problems(Problem("trainer.run_root", got, "use that one as run_root", "not-permitted"))

    def check(self) -> None:
        """Raises `Problems` where a link or pipe, which a copied folder may hold, would be written through."""
        folders = (self.path / "logs", self.code, self.trackers, self.evaluations)
        files = (
            self.path / ".lock", self.spec, self.prepared, self.words, self.lock, self.events, self.console,
            self.refused, self.detached, *folders,
        )  # fmt: skip
        fix, problems = "replace it by the file or folder itself", list[Problem]()
        for path in files:
            if path.is_symlink():
                problems.append(Problem(str(path), "is a link", fix, "not-permitted"))
            elif path.exists() and not (path.is_dir() if path in folders else path.is_file()):  # a pipe, a device
                kind = "folder" if path in folders else "file"
                problems.append(Problem(str(path), f"is not a {kind}", fix, "not-permitted"))
        if problems:
            raise Problems(problems)

    def attempts(self) -> list[Path]:
        """Folders of the process logs, first attempt first."""
        folders = [path for path in (self.path / "logs").glob("attempt_*") if _ATTEMPT.fullmatch(path.name)]
        return sorted(folders, key=_number_of)

    @property
    def next_attempt(self) -> int:
        attempts = self.attempts()
        return _number_of(attempts[-1]) + 1 if attempts else 1

    def new_attempt(self) -> Path:
        logs = self.path / "logs" / f"attempt_{self.next_attempt}"
        logs.parent.mkdir(mode=0o700, exist_ok=True)
        logs.mkdir(mode=0o700)
        return logs

    def write_evaluation(self, step: int, text: str, keep: int | None) -> Path | None:
        """Writes `eval_logs/eval_step_0010.json`, and deletes those of the first steps if there are more than `keep`.
        Returns the file; None where it cannot be written."""
        path = self.evaluations / f"eval_step_{step:04}.json"
        try:
            self.evaluations.mkdir(mode=0o700, exist_ok=True)
            write_atomic(path, text)
        except OSError:
            return None
        evaluations = [file for file in self.evaluations.iterdir() if _EVALUATION.fullmatch(file.name)]
        for old in sorted(evaluations, key=lambda file: int(file.stem[len("eval_step_") :]))[: -keep if keep else 0]:
            old.unlink(missing_ok=True)
        return path

    def has_results(self) -> bool:
        """Whether anything was trained here that a new run must not overwrite."""
        return any(self.checkpoints.glob("[!.]*")) or any(isinstance(e, Step) for e in events_of(self.events))


def _number_of(attempt: Path) -> int:
    return int(attempt.name.removeprefix("attempt_"))


class Lock:
    """One writer for a run. Every process that was started with it shares the lock, until the last one ends.

    The file names the holder, for `rlrun stop` and for error messages.
    """

    def __init__(self, folder: Folder, wait_s: float = LOCK_WAIT_S, *, named: bool = True) -> None:
        """Raises `Problems` where another process holds it. A `named` holder gets the signals of `rlrun stop`."""
        self.descriptor = os.open(folder.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + wait_s
        while not self._try_lock():
            if time.monotonic() > deadline or writer_here(folder) is not None:
                os.close(self.descriptor)
                raise Problems(in_use(folder))
            time.sleep(0.1)
        os.ftruncate(self.descriptor, 0)
        if named:
            os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _try_lock(self) -> bool:
        with suppress(BlockingIOError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def holder(folder: Folder) -> dict[str, int | str] | None:
    """`pid` and `host` of the run's writer; None when nobody writes it. Empty where its lock names none, and where it
    belongs to another user and cannot be opened."""
    try:
        descriptor = os.open(folder.path / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
    except PermissionError:
        return {}
    except OSError:  # there is no lock yet, or a file that cannot be locked
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _parse_holder(os.pread(descriptor, 4096, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _parse_holder(text: bytes) -> dict[str, int | str]:
    """`pid` and `host` in the text of a lock; empty where it names no process, as just after it was locked."""
    with suppress(ValueError, KeyError, TypeError):
        node = parse_json(text)
        pid, host = node["pid"], node["host"]
        if type(pid) is int and 0 < pid <= LARGEST_PID and isinstance(host, str):
            return {"pid": pid, "host": host}
    return {}


def writer_here(folder: Folder) -> int | None:
    """Process id of the lock's holder where it runs on this machine; None where only processes that it started hold it.

    The holder has the file open; else the number belongs to a process that began later, or was written by hand.
    """
    owner = holder(folder)
    if not owner or owner["host"] != socket.gethostname():
        return None
    pid = int(owner["pid"])
    return pid if machine.has_open(pid, folder.path / ".lock") else None


def in_use(folder: Folder) -> Problem:
    """The problem that another process is writing `folder`."""
    owner = holder(folder) or {}
    got = f"is being written by process {owner.get('pid', '?')} on {owner.get('host', 'another host')}"
    return Problem(folder.name, got, f"rlrun stop {folder.path} would end it", "in-use")


def take(root: Path, project: str, experiment: str) -> tuple[Folder, Lock]:
    """The folder of a new run, locked. Raises `Problems` where a run of that name has been trained."""
    folder = Folder(root / project / experiment)
    folder.check_no_link()
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.check()
    lock = Lock(folder)
    if folder.has_results():
        got, fix = f"{folder.path} is there already", f"use another name, or rlrun train --resume {folder.path}"
        with lock:
            raise Problems(Problem("trainer.experiment_name", got, fix, "in-use"))
    return folder, lock


def free_name(root: Path, project: str, label: str) -> str:
    """`label-1`, or with the first number that no folder of the project has."""
    taken = {path.name for path in (root / project).glob(f"{label}-*")}
    return next(name for number in count(1) if (name := f"{label}-{number}") not in taken)


def unheard_events(folder: Folder) -> list[Event]:
    """Events that the last attempt reported after the launcher was gone, so that the event log lacks them.

    As many of each type as the event log has of this attempt are skipped,
    and of alerts as many of each text: it has alerts of the launcher and of health rules, too.
    """
    number = folder.next_attempt - 1
    log = folder.path / "logs" / f"attempt_{number}" / "rank-0.log"
    if not log.is_file():  # of no attempt yet, or one that was killed as it began
        return []
    entries = (entry for entry in LogReader(folder.events).new() if entry.attempt == number)
    logged = [entry.event for entry in entries if not isinstance(entry.event, LAUNCHER_EVENTS)]
    logged_counts = Counter(_kind(event) for event in logged if not is_damage(event))
    damaged = len(logged) - logged_counts.total()  # unreadable lines, each of which was one event
    unheard = []
    for event in (event for line in NewLines(log).read() for event in marked_events(line)):
        if logged_counts[_kind(event)]:
            logged_counts[_kind(event)] -= 1
        elif damaged:
            damaged -= 1
        else:
            unheard.append(event)
    return unheard


def _kind(event: Event) -> tuple[type[Event], str]:
    return type(event), event.text if isinstance(event, Alert) else ""


@dataclass
class Attempt:
    name: str
    step: int = 0
    """The last step that it reported."""
    ended: float | None = None
    """Unix seconds (UTC); None while it runs, and where the launcher was killed with it."""
    cause: str = ""
    """The name of the `Cause` of a fault, else finished, stopped or failed."""
    why: str = ""


def read_attempts(folder: Folder) -> list[Attempt]:
    """All attempts that have a folder, the first one first, as the event log tells of them."""
    attempts = {_number_of(logs): Attempt(logs.name) for logs in folder.attempts()}
    for logged in LogReader(folder.events).new():
        event, is_restart = logged.event, isinstance(logged.event, Restarted)
        attempt = attempts.get(logged.attempt - is_restart)
        if attempt and isinstance(event, Step):
            attempt.step = event.step
        elif attempt and isinstance(event, Restarted | Ended):
            cause = event.how if isinstance(event, Ended) and not event.cause else event.cause
            attempt.ended, attempt.cause, attempt.why = event.at, cause, event.why
    return list(attempts.values())
