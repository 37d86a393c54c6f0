"""Opens what a name stands for: a run of ours, or a log that another program wrote."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from yaml import YAMLError

from launcher.core.bounded_parse import parse_json, parse_yaml
from launcher.core.events import Alert, Event, HeldOutScores, LogReader, Sample, Step, events_of, is_damage
from launcher.core.files import read_file
from launcher.core.problems import OnMessage, Problem, Problems, error_message, short_repr
from launcher.logs import trainer_state
from launcher.logs.forms.numbering import Kind
from launcher.logs.forms.writers import TWO_WRITERS
from launcher.logs.sources import LogSource, open_log
from launcher.runs import store
from launcher.runs.folder import Folder, read_attempts
from launcher.views.record import RunRecord


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

    def steps(self, tell: OnMessage = lambda text: None) -> Iterator[Step]:
        """Those that are read; `tell` is called where the steps of a second program are left out."""
        for event in self.events():
            if isinstance(event, Step):
                yield event
            elif isinstance(event, Alert) and event.rule == TWO_WRITERS:
                tell(event.text)

    def last_steps(self, count: int) -> list[Step]:
        return self.log.last_steps(count) if self.log else list(deque(self.steps(), count))

    @property
    def no_metrics(self) -> Problem:
        """What to say where there is no step."""
        if self.log is None:
            return Problem(self.title, "the run has no step yet", "use rlrun status to see where it is", "not-found")
        got = "no line with metrics that is known here"
        return Problem(self.title, got, "use a log of verl, TRL or rlrun, or lines such as `Step 1/10 | Loss: 0.5`")


def find(name: str, root: Path) -> LogOrRun:
    """The log file of that path, `-` for standard input, or the run: its folder, project/experiment, or experiment.
    Raises `Problems` where there is neither."""
    stream = copied(name)
    if stream or os.path.isfile(name):
        log = open_log(stream or Path(name), piped=stream is not None)
        return LogOrRun("standard input" if name == "-" else name, log.kind, log.events, log)
    if folder := store.named(name, root):
        return LogOrRun(folder.name, "rlrun", lambda: events_of(folder.events))
    if state := state_in(name):
        log = open_log(state)
        return LogOrRun(str(state), log.kind, log.events, log)
    raise Problems(not_found(name, root))


def state_in(name: str) -> Path | None:
    """The `trainer_state.json` of the folder of that name; None where there is none."""
    path = Path(name, trainer_state.NAME)
    return path if os.path.isfile(path) else None


def copied(name: str) -> Path | None:
    """A copy, until the program ends, of what is piped in: `-`, and pipes such as `<(zcat a.log.gz)`. None where the
    name is that of no stream. Only a pipe that a shell opened counts: any other may have no writer, and would be waited
    for without end."""
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


def _logs_in(path: Path) -> list[str]:
    """Files of a folder that may be meant: its logs, and the state of its latest checkpoint."""
    endings = (".log", ".out", ".err", ".txt", ".jsonl")
    found = [file for file in islice(path.iterdir(), 1_000) if file.suffix in endings]
    states = sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    return [*map(str, sorted(found)[:8]), *map(str, states[-1:])]


# ---- the record of a run


def read_record(folder: Folder) -> RunRecord:
    """The run as it is now. Raises `Problems` where the name means no run."""
    heard_last: dict[int, float] | None = None

    def last_heard(attempt: int) -> float | None:
        """When an attempt wrote its last event, undone ones too: a killed launcher leaves no other end."""
        nonlocal heard_last
        if heard_last is None:
            log = LogReader(folder.events).new()
            heard_last = {logged.attempt: logged.event.at for logged in log if not is_damage(logged.event)}
        return heard_last.get(attempt)

    record = RunRecord(folder, store.see(folder).state, attempts=read_attempts(folder), last_heard=last_heard)
    record.settings = _node(record, "spec.yaml", parse_yaml)
    record.lock = _node(record, "lock.json", parse_json)
    for event in events_of(folder.events):
        record.take(event)
    if not folder.events.is_file():
        record.unread.append("events.jsonl: there is none, so nothing is known of the training")
    if record.damaged:
        record.unread.append(f"events.jsonl: {record.damaged} damaged lines were left out")
    return record


def _node(record: RunRecord, name: str, parse: Callable[[bytes], Any]) -> Mapping[str, Any]:
    try:
        node = parse(read_file(record.folder.path / name))
    except (OSError, ValueError, YAMLError) as error:
        record.unread.append(f"{name}: cannot be read, {error_message(error)}")
        return {}
    if not isinstance(node, dict):
        record.unread.append(f"{name}: holds no settings")
        return {}
    return node


def samples_at(folder: Folder, step: int) -> Iterator[Sample]:
    """The answers that were logged at a step."""
    return (event for event in events_of(folder.events) if isinstance(event, Sample) and event.step == step)


def scores_at(folder: Folder, step: int) -> Iterator[HeldOutScores]:
    """The scores of single prompts that were logged at a step."""
    return (event for event in events_of(folder.events) if isinstance(event, HeldOutScores) and event.step == step)
