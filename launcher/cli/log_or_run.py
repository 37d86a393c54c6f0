"""A run of ours, or a log that another program wrote: what `rlrun metrics`, `samples` and `diagnose` accept."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile

from launcher.cli.output import err, printable
from launcher.core.events import Alert, Event, Step, events_of
from launcher.core.problems import Problem, Problems, short_repr
from launcher.logs import endings, trainer_state
from launcher.logs.numbering import Kind
from launcher.logs.sources import LogSource, open_log
from launcher.logs.writers import TWO_WRITERS
from launcher.runs import store

PROGRAMS = {"rlrun": "rlrun", "verl": "verl", "verl_file": "verl", "trl": "trl", "trainer_state": "trl"}
"""In whose spelling the health rules name settings, by the form of a log; of others in words."""


@dataclass(frozen=True)
class LogOrRun:
    """What a name stands for."""

    title: str
    """The run's name, or the log's path."""
    kind: Kind
    """`rlrun` of a run; of a log its form: in whose spelling settings are named."""
    events: Callable[[], Iterator[Event]]
    """Reads all events from the beginning."""
    log: LogSource | None = None
    """The log; None where it is a run."""
    _printed: set[str] = field(default_factory=set)

    def steps(self) -> Iterator[Step]:
        """Those that are read; whose are left out is printed, once."""
        for event in self.events():
            if isinstance(event, Step):
                yield event
            elif isinstance(event, Alert) and event.rule == TWO_WRITERS and event.text not in self._printed:
                self._printed.add(event.text)
                err.print(printable(event.text), style="yellow", soft_wrap=True, highlight=False, markup=False)


def find(name: str, root: Path) -> LogOrRun:
    """The log file of that path, `-` for standard input, or the run: its folder, project/experiment, or experiment.
    Raises `Problems` where there is neither."""
    path = Path(name)
    stream = copied(name)
    if stream or os.path.isfile(name):
        log = open_log(stream or path, piped=stream is not None)
        return LogOrRun("standard input" if name == "-" else name, log.kind, log.events, log)
    if folder := store.named(name, root):
        return LogOrRun(folder.name, "rlrun", lambda: events_of(folder.events))
    if state := state_in(name):
        log = open_log(state)
        return LogOrRun(str(state), log.kind, log.events, log)
    raise Problems(not_found(name, root))


def fixes_of_ending(rule: str) -> Mapping[str, str]:
    """What helps against the error of this `rule` that a log ends with, by program; nothing where it is none."""
    return endings.FIXES.get(rule, {})


def state_in(name: str) -> Path | None:
    """The `trainer_state.json` of the folder of that name; None where there is none."""
    path = Path(name, trainer_state.NAME)
    return path if os.path.isfile(path) else None


def copied(name: str) -> Path | None:
    """A copy, until the program ends, of what is piped in: `-`, and pipes such as `<(zcat a.log.gz)`. None where the
    name is that of no stream."""
    if name != "-" and not _is_pipe(name):
        return None
    with NamedTemporaryFile(prefix="rlrun-", suffix=".log", delete=False) as copy:
        atexit.register(Path(copy.name).unlink, missing_ok=True)
        if name == "-":
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with Path(name).open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
    return Path(copy.name)


def _is_pipe(name: str) -> bool:
    """Whether a shell opened it: a pipe of any other name may have no writer, and would be waited for without end."""
    try:
        return name.startswith("/dev/") and Path(name).is_fifo()
    except (OSError, ValueError):
        return False


def _logs_in(path: Path) -> list[str]:
    """Files of a folder that may be meant: its logs, and the state of its latest checkpoint."""
    found = [
        file for file in islice(path.iterdir(), 1_000) if file.suffix in (".log", ".out", ".err", ".txt", ".jsonl")
    ]
    states = sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    return [*map(str, sorted(found)[:8]), *map(str, states[-1:])]


def not_found(name: str, root: Path) -> Problem:
    """What to say of a name that is neither that of a log nor of a run."""
    try:
        if Path(name).is_dir() and (logs := _logs_in(Path(name))):
            got = "a folder, and no run; it has logs"
            return Problem(short_repr(name), got, f"use {' or '.join(map(shlex.quote, logs))}", "not-found")
    except (OSError, ValueError):
        pass
    try:
        store.find(name, root)
    except Problems as error:
        known = error.problems[0].fix
    got, fix = f"no log file, and no run of that name in {root}", "use the path of a log file, or the name of a run"
    return Problem(short_repr(name), got, f"{fix}: {known}", "not-found")


def events_of_log_or_run(name: str, root: Path) -> Iterator[Event]:
    """All events of the log or run of that name. Raises `Problems` where there is neither."""
    return find(name, root).events()
