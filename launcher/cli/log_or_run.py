"""A run of ours, or a log that another program wrote: what `rlrun metrics`, `samples` and `diagnose` accept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.core.events import Event, Step, events_of
from launcher.core.problems import Problem, Problems, short_repr
from launcher.logs.parser import Kind
from launcher.logs.sources import LogSource, open_log
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

    def steps(self) -> Iterator[Step]:
        return (event for event in self.events() if isinstance(event, Step))


def find(name: str, root: Path) -> LogOrRun:
    """The log file of that path, or the run: its folder, project/experiment, or experiment. Raises `Problems` where
    there is neither."""
    path = Path(name)
    if os.path.isfile(name):
        log = open_log(path)
        return LogOrRun(name, log.kind, log.events, log)
    if folder := store.named(name, root):
        return LogOrRun(folder.name, "rlrun", lambda: events_of(folder.events))
    if os.path.isfile(state := path / "trainer_state.json"):
        log = open_log(state)
        return LogOrRun(str(state), log.kind, log.events, log)
    raise Problems(_not_found(name, root))


def _not_found(name: str, root: Path) -> Problem:
    try:
        store.find(name, root)
    except Problems as error:
        known = error.problems[0].fix
    got, fix = f"no log file, and no run of that name in {root}", "use the path of a log file, or the name of a run"
    return Problem(short_repr(name), got, f"{fix}: {known}", "not-found")


def events_of_log_or_run(name: str, root: Path) -> Iterator[Event]:
    """All events of the log or run of that name. Raises `Problems` where there is neither."""
    return find(name, root).events()
