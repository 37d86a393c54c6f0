"""A run's folder: where each thing lies, who may write it, and what its last process reported unheard.

runs/<project>/<experiment>/  spec.yaml prepared.json words.txt lock.json events.jsonl console.log checkpoints/
                              logs/attempt_N/
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from launcher.core import machine
from launcher.core.bounded_parse import parse_json
from launcher.core.events import LAUNCHER_EVENTS, Event, LogReader, Step, events_of
from launcher.core.problems import Problem, Problems
from launcher.spec.engine import EventReader

_ATTEMPT = re.compile(r"attempt_[1-9][0-9]*")
FIRST_SEQ = "first_seq"  # in an attempt's folder: the `seq` that its first event gets
LOCK_WAIT_S = 10.0  # processes of a killed run end within moments; until then they hold the lock


@dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def prepared(self) -> Path:
        return self.path / "prepared.json"

    @property
    def words(self) -> Path:
        return self.path / "words.txt"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    @property
    def refused(self) -> Path:
        return self.path / "refused.jsonl"

    @property
    def detached(self) -> Path:
        """What `rlrun train -d` said where nobody was to see it."""
        return self.path / "detached.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def name(self) -> str:
        """project/experiment"""
        return f"{self.path.parent.name}/{self.path.name}"

    def symlink_problem(self) -> str:
        """Why a new run must not be made here; empty where it may. The folder that holds all runs may be a link."""
        links = [path for path in (self.path.parent, self.path) if path.is_symlink()]
        return f"trainer.run_root: {links[0]} is a link to another folder; use that one as run_root" if links else ""

    def check(self) -> None:
        """Raises `Problems` where what is written here would land elsewhere: a copied folder may hold links."""
        names = (
            ".lock", "spec.yaml", "prepared.json", "words.txt", "lock.json", "events.jsonl", "console.log",
            "refused.jsonl", "detached.log", "logs",
        )  # fmt: skip
        if found := [name for name in names if (self.path / name).is_symlink()]:
            raise Problems(
                [Problem(str(self.path / name), "is a link", "replace it by what it leads to") for name in found]
            )

    def attempts(self) -> list[Path]:
        """Folders of the process logs, first attempt first."""
        found = [path for path in (self.path / "logs").glob("attempt_*") if _ATTEMPT.fullmatch(path.name)]
        return sorted(found, key=_number_of)

    @property
    def next_attempt(self) -> int:
        before = self.attempts()
        return _number_of(before[-1]) + 1 if before else 1

    def new_attempt(self) -> Path:
        logs = self.path / "logs" / f"attempt_{self.next_attempt}"
        logs.parent.mkdir(mode=0o700, exist_ok=True)
        logs.mkdir(mode=0o700)
        return logs

    def has_results(self) -> bool:
        """Whether anything was trained here that a new run must not overwrite."""
        return any(self.checkpoints.glob("[!.]*")) or any(isinstance(e, Step) for e in events_of(self.events))


def _number_of(attempt: Path) -> int:
    return int(attempt.name.removeprefix("attempt_"))


class Lock:
    """One writer for a run. Held by every process that was started with it, until the last one ends.

    The file names the holder, so that `rlrun stop` finds it and a refusal can say who it is.
    """

    def __init__(self, folder: Folder, wait_s: float = LOCK_WAIT_S) -> None:
        self.descriptor = os.open(folder.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        give_up = time.monotonic() + wait_s
        while not self._taken():
            if time.monotonic() > give_up or writer_lives(folder):
                os.close(self.descriptor)
                raise Problems(held(folder))
            time.sleep(0.1)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def holder(folder: Folder) -> dict[str, int | str] | None:
    """Process id and host of the run's writer; None when nobody writes it."""
    try:
        descriptor = os.open(folder.path / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 4096, 0)
        return parse_json(text) if text else {}
    finally:
        os.close(descriptor)
    return None


def writer_lives(folder: Folder) -> bool:
    """Whether the lock's holder itself runs here, not only processes that it left behind."""
    who = holder(folder)
    return who is not None and who.get("host") == socket.gethostname() and machine.is_alive(int(who["pid"]))


def holder_words(folder: Folder) -> str:
    who = holder(folder) or {}
    return f"process {who.get('pid', '?')} on {who.get('host', 'another host')}"


def held(folder: Folder) -> str:
    """Why nobody else may write it now."""
    return f"{folder.name}: is being written by {holder_words(folder)}; rlrun stop {folder.path} would end it"


def take(root: Path, project: str, experiment: str) -> tuple[Folder, Lock]:
    """The folder of a new run, locked. Raises `Problems` where a run of that name has been trained."""
    folder = Folder(root / project / experiment)
    if problem := folder.symlink_problem():
        raise Problems(problem)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.check()
    lock = Lock(folder)
    if folder.has_results():
        with lock:
            raise Problems(
                Problem(
                    "trainer.experiment_name",
                    f"{folder.path} is there already",
                    f"use another name, or rlrun train --resume {folder.path}",
                    "in-use",
                )
            )
    return folder, lock


def free_name(root: Path, project: str, label: str) -> str:
    """`label-1`, or with the next number that no folder has."""
    taken = {path.name for path in (root / project).glob(f"{label}-*")}
    number = 1
    while f"{label}-{number}" in taken:
        number += 1
    return f"{label}-{number}"


def unheard_events(folder: Folder, reader: EventReader) -> list[Event]:
    """What rank 0 of the last attempt reported after the launcher was gone, so that the event log lacks it.

    `reader` makes events of its log's lines. The attempt's folder holds the `seq` that its first event got.
    """
    attempts = folder.attempts()
    log = attempts[-1] / "rank-0.log" if attempts else None
    begin = attempts[-1] / FIRST_SEQ if attempts else None
    if log is None or begin is None or not log.exists() or not begin.exists():
        return []
    first = int(begin.read_text().strip() or 0)
    since = LogReader(folder.events, after=first - 1).new()
    heard = sum(not isinstance(logged.event, LAUNCHER_EVENTS) for logged in since)
    with log.open("rb") as file:
        reported = [
            event
            for line in file
            if line.endswith(b"\n")
            for event in reader.feed(line.decode("utf-8", "replace").rstrip("\n"))
        ]
    return reported[heard:]
