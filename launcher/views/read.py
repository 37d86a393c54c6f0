"""Opens what a name stands for: a run of rlrun, or a log of another program."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile

from launcher.core.events import Alert, Event, Step, events_of
from launcher.core.problems import OnMessage, Problem, Problems, path_repr
from launcher.logs import trainer_state
from launcher.logs.forms.numbering import Kind
from launcher.logs.forms.reading import MANY_NAMES
from launcher.logs.sources import LogSource, open_log
from launcher.runs import store
from launcher.runs.folder import Folder


@dataclass(frozen=True)
class LogAsFolder(Folder):
    """A log where a run's folder is expected: it has a name, and none of a folder's files."""

    title: str

    @property
    def name(self) -> str:
        """The path as it was given, or `standard input`."""
        return self.title


@dataclass(frozen=True)
class LogOrRun:
    """A log or a run, and how to read its events."""

    folder: Folder
    """The run's, or the log in its place."""
    kind: Kind
    """`rlrun` for a run, the form for a log; it decides in whose spelling settings are named."""
    events: Callable[[], Iterator[Event]]
    """Reads all events from the beginning."""
    log: LogSource | None = None
    """The log; None where it is a run."""

    @property
    def title(self) -> str:
        """The run's name, or the log's path."""
        return self.folder.name

    def steps(self, tell: OnMessage = lambda text: None) -> Iterator[Step]:
        """All steps; `tell` gets a message where metrics are left out."""
        for event in self.events():
            if isinstance(event, Step):
                yield event
            elif isinstance(event, Alert) and event.rule == MANY_NAMES:
                tell(event.text)

    def last_steps(self, count: int) -> list[Step]:
        return self.log.last_steps(count) if self.log else list(deque(self.steps(), count))

    @property
    def no_metrics(self) -> Problem:
        """The problem to report where there is no step."""
        if self.log is None:
            return Problem(self.title, "the run has no step yet", "use rlrun status to see where it is", "not-found")
        got = "no line with metrics that is known here"
        return Problem(self.title, got, "use a log of verl, TRL or rlrun, or lines such as `Step 1/10 | Loss: 0.5`")


def run_in(folder: Folder) -> LogOrRun:
    """The run in a folder."""
    return LogOrRun(folder, "unknown" if folder.is_logged else "rlrun", lambda: events_of(folder.events))


def find(name: str, root: Path) -> LogOrRun:
    """The log file at a path, `-` for standard input, or a run by its folder, project/experiment, or experiment; of a
    folder that is no run, its `trainer_state.json`. Raises `Problems` where there is none of these."""
    stream = copied(name)
    path, title = stream or Path(name), "standard input" if name == "-" else name
    if not stream and (os.path.isdir(name) or not os.path.exists(name)):
        if folder := store.named(name, root):
            return run_in(folder)
        path = Path(name, trainer_state.NAME)
        if not os.path.isfile(path):
            raise Problems(not_found(name, root))
        title = str(path)
    return log_in(path, title, piped=stream is not None)


def log_in(path: Path, title: str, *, piped: bool = False) -> LogOrRun:
    """The log in a file. Raises `Problems` as `open_log` does."""
    log = open_log(path, piped=piped)
    return LogOrRun(LogAsFolder(path, title), log.kind, log.events, log)


def copied(name: str) -> Path | None:
    """A temporary copy of piped input: `-`, or a pipe such as `<(zcat a.log.gz)`; it is removed when the program ends.
    None for other names. Only pipes that a shell opened (/dev/...) are read: another may have no writer, and reading it
    would never end."""
    try:
        if name != "-" and not (name.startswith("/dev/") and Path(name).is_fifo()):
            return None
    except (OSError, ValueError):
        return None
    with NamedTemporaryFile(prefix="rlrun-", suffix=".log", delete=False) as copy:
        atexit.register(Path(copy.name).unlink, missing_ok=True)
        if name == "-":
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with Path(name).open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
    return Path(copy.name)


def not_found(name: str, root: Path) -> Problem:
    """The problem to report for a name that is neither of a log nor of a run."""
    try:
        if Path(name).is_dir() and (logs := logs_in(Path(name))):
            got = "a folder, and no run; it has logs"
            paths = [shlex.quote(str(log)) for log in (*logs[:8], *logs[8:][-1:])]
            return Problem(path_repr(name), got, f"use {' or '.join(paths)}", "not-found")
    except (OSError, ValueError):
        pass
    try:
        store.find(name, root)
    except Problems as error:
        run_fix = error.problems[0].fix
    got, fix = f"no log file, and no run of that name in {root}", "use the path of a log file, or the name of a run"
    return Problem(path_repr(name), got, f"{fix}: {run_fix}", "not-found")


def logs_in(path: Path) -> list[Path]:
    """Files of a folder that may be logs, and its `trainer_state.json` or that of its latest checkpoint, if newer."""
    endings = (".log", ".out", ".err", ".txt", ".jsonl")
    logs = [file for file in islice(path.iterdir(), 1_000) if file.suffix in endings and file.is_file()]
    states = [*path.glob(f"checkpoint-*/{trainer_state.NAME}"), *path.glob(trainer_state.NAME)]
    states.sort(key=lambda file: file.stat().st_mtime)
    return [*sorted(logs), *states[-1:]]
