"""What loggers of scripts report, written as the events of runs below `logged/`: each row once, whatever ends the
server. A row is one line of events.jsonl, marked with its session and number, so what is stored is found again there:

    {"seq":7,"attempt":1,"session":"18c0-5f","row":4,"kind":"Step","at":1700000000.0,"step":3,"metrics":{"loss":1.2}}
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from launcher.core.bounded_parse import parse_json
from launcher.core.events import (
    GOES_BACK,
    INVALID,
    Alert,
    Ended,
    Event,
    How,
    LogProgress,
    LogReader,
    Resumed,
    Started,
    Step,
    events_of,
    from_node,
    to_line,
)
from launcher.core.files import AppendOnlyFile, read_lines, write_atomic
from launcher.core.metric_aliases import by_our_names
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import redact
from launcher.core.state import RunState, after
from launcher.monitor.console import console_lines
from launcher.runs.folder import LOGGED, Folder, Lock
from launcher.server.jobs import Jobs
from launcher.server.records import JobRecord
from launcher.views.findings import judge_of
from launcher.views.record import RunRecord

PROJECT = "logged"
IDLE_S, LOOK_S = 60.0, 5.0
"""Without a word from its loggers for so long, a job has no writer any more; they speak every 5 s."""
LEVELS = {"failed": "critical", "error": "critical", "warning": "warn", "warn": "warn"}
"""Of a status, of the alert that it is."""
_LINE = re.compile(
    rb'\{"seq":[0-9]+,"attempt":([0-9]+)(?:,"session":"([\w.-]+)","row":([0-9]+))?,"kind":"(\w+)","at":([^,]+)'
    rb'(?:,"(?:step|open)":([\w-]+)(?:,"parent":"([\w.-]+)")?)?'
)


@dataclass(frozen=True, kw_only=True)
class LoggerSession(Event):
    """A session of a logger began, or has ended. Its line is passed over by who reads a run, as one of a later
    version."""

    open: bool
    parent: str = ""
    """Of a process that was forked, the session of the one that it was forked from, which may be yet to come."""
    host: str = ""
    program: str = ""


@dataclass
class LoggedRows:
    """What a log holds, as far as its writer has to know."""

    seq: int = 0
    """Of the next line."""
    attempt: int = 1
    status: str = ""
    """`running` or `ended`; empty before its first event."""
    step: int = 0
    following: dict[str, int] = field(default_factory=dict)
    """Of each session the number of its next row."""
    begun: dict[str, float] = field(default_factory=dict)
    """When each session began."""
    ended_at: float = 0.0
    open: set[str] = field(default_factory=set)
    """The sessions that have not ended, and those that are yet to come: parents of such as did."""
    alerts: set[tuple[int, str]] = field(default_factory=set)
    """Step and text of each."""

    @classmethod
    def read(cls, path: Path) -> LoggedRows:
        """Of whole lines; what a kill left of the last one is cut off."""
        found, end = cls(), 0
        with path.open("rb") as log:
            for line, size, ended in read_lines(log):
                if not ended:
                    os.truncate(path, end)
                    break
                end += size
                found.see(line)
        return found

    def see(self, line: bytes) -> None:
        self.seq += 1
        if not (match := _LINE.match(line)):
            return
        attempt, session, row, kind, at, value, parent = match.groups(b"")
        self.attempt = int(attempt)
        if session:
            self.following[session.decode()] = int(row) + 1
        match kind:
            case b"LoggerSession":
                (self.open.add if value == b"true" else self.open.discard)(session.decode())
                self.begun.setdefault(session.decode(), float(at))
                if parent and parent.decode() not in self.following:
                    self.open.add(parent.decode())
            case b"Started" | b"Resumed":
                self.status = "running"
            case b"Ended":
                self.status, self.ended_at = "ended", float(at)
            case b"Step":
                self.step = int(value)
            case b"Alert":
                node = parse_json(line)
                self.alerts.add((node["step"], node["text"]))


class LoggedJob:
    """The one writer of a job's folder. Raises `Problems` where another process is that, or the folder is another
    run's."""

    def __init__(self, folder: Folder) -> None:
        folder.check_no_link()
        if folder.spec.exists() and not folder.is_logged:
            got = "is a run that was not made by a logger"
            raise Problems(Problem(folder.name, got, "use another job_uuid", "in-use"))
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.check()
        self.folder, self.heard = folder, time.monotonic()
        self._lock = Lock(folder, wait_s=1.0, named=False)
        with ExitStack() as opened:
            opened.enter_context(self._lock)
            if not folder.spec.exists():
                names = {"project_name": folder.path.parent.name, "experiment_name": folder.path.name}
                write_atomic(folder.spec, LOGGED.decode() + f"trainer: {json.dumps(names)}\n")
            folder.events.touch(0o600)
            self._log = LoggedRows.read(folder.events)
            self._events, self._console = AppendOnlyFile.open(folder.events), AppendOnlyFile.open(folder.console)
            opened.pop_all()
        self._state = RunState()  # since it was opened: what console.log needs
        self._unjudged = LogReader(folder.events)
        self._judge_anew()

    def store(self, session: str, first: int, rows: Sequence[Mapping[str, Any] | None]) -> int:
        """Write the rows that are new, and make them durable; the number of the row that comes next. Nothing is stored
        where rows before these are missing. Raises `Problems` where the disk refuses them: the job is to be closed."""
        self.heard = time.monotonic()
        following = self._log.following.get(session, 0)
        if first > following or first + len(rows) <= following:
            return following
        for number, row in enumerate(rows[following - first :], following):
            if row is not None:
                self._take(row, session, number)
        self._events.sync()
        if refused := self._events.refused:
            raise Problems(Problem(self.folder.name, error_message(refused), "make room on the disk", "not-enough"))
        self._log.following[session] = first + len(rows)
        self.judge(2 * len(rows))  # so that little is left when it ends
        return first + len(rows)

    def _judge_anew(self) -> None:
        """What `judge` has seen: so far, nothing."""
        self._judge = judge_of(None, "unknown")
        self._record = RunRecord(self.folder, RunState(), partial(events_of, self.folder.events))

    def judge(self, most: int = 500) -> bool:
        """Write the alerts that the next steps give rise to; whether there were any."""
        found = list(islice(self._unjudged.new(), most))
        for logged in found:
            back = isinstance(logged.event, GOES_BACK)
            if back:
                self._judge_anew()
            for event in events_of(self.folder.events, logged.seq) if back else (logged.event,):
                self._record.state = after(self._record.state, event)
                self._record.take(event)
                self._alert(self._judge.see(event))
        return bool(found)

    def close(self) -> None:
        self._events.close()
        self._console.close()
        self._lock.__exit__()

    def _alert(self, alerts: list[Alert]) -> None:
        for alert in alerts:
            if (alert.step, alert.text) not in self._log.alerts:
                self._write(alert)

    def _write(self, event: Event, **mark: Any) -> None:
        line = redact(to_line(event, seq=self._log.seq, attempt=self._log.attempt, **mark)).encode()
        self._log.see(line)
        self._events.write(line + b"\n")
        self._state = after(self._state, event)
        for text in console_lines(event, self._state):
            self._console.append(text)

    def _take(self, row: Mapping[str, Any], session: str, number: int) -> None:
        try:
            event = self._event_of(row)
        except INVALID as error:
            text = f"row {number} of session {session} was left out: {' '.join(error_message(error).split())[:300]}"
            event = Alert(step=self._log.step, text=text, rule="logger")
        log = self._log
        if isinstance(event, Step) and log.status == "ended":
            log.attempt += 1
            beside = log.begun.get(session, math.inf) < log.ended_at  # it comes late, and undoes nothing
            step = log.step if beside else min(event.step - 1, log.step)  # started again, perhaps from a checkpoint
            self._write(Resumed(at=event.at, step=step, attempt=log.attempt))
            log.status = ""
        if not log.status:
            self._write(Started(at=event.at, run=self.folder.name, algorithm="", processes=1))
        if isinstance(event, LoggerSession) and not event.open and log.status != "ended" and log.open <= {session}:
            while self.judge():
                pass
            verdict = replace(self._record.verdict, fix="")  # which names settings of ours
            how, why, at = row.get("how", "finished"), str(row.get("why", "")), event.at
            if how == "finished":  # only now it is known how many steps there were to be
                self._write(LogProgress(at=at, step=log.step, steps=log.step))
            self._write(Ended(at=at, how=how, why=why, verdict=verdict))
        self._write(event, session=session, row=number)

    def _event_of(self, row: Mapping[str, Any]) -> Event:
        """Raises `INVALID` where the row is of no kind, or has values that it cannot have."""
        at, kind = row.get("at") or time.time(), row["kind"]
        match kind:
            case "metrics":
                node = {"kind": "Step", "step": row["step"], "metrics": _numbers(row)}
            case "gpu":
                node = {
                    "kind": "Usage", "rank": row["gpu_index"], "host": row.get("host", ""),
                    "gpu_percent": row.get("utilization"), "gpu_memory_bytes": _in_bytes(row.get("memory_used")),
                    "gpu_memory_total_bytes": _in_bytes(row.get("memory_total")), "gpu_celsius": row.get("temperature"),
                }  # fmt: skip
            case "checkpoint":
                node = {"kind": "Saved", "step": row["step"], "path": row["path"]}
            case "status":
                status, message = str(row["status"]), str(row.get("message", ""))
                node = {
                    "kind": "Alert", "step": self._log.step, "rule": "log_status",
                    "level": LEVELS.get(status.lower(), "info"), "text": f"{status}: {message}" if message else status,
                }  # fmt: skip
            case "begin":
                host, program = str(row.get("host", "")), str(row.get("program", ""))
                parent = str(row.get("parent", ""))
                return LoggerSession(at=_time(at), open=True, parent=parent, host=host, program=program)
            case "finish":
                if row.get("how", "finished") not in get_args(How):
                    raise ValueError(f"how: {row['how']!r} is none of {', '.join(get_args(How))}")
                return LoggerSession(at=_time(at), open=False)
            case _:
                raise ValueError(f"kind: {kind!r} is none of metrics, gpu, checkpoint, status, begin, finish")
        event = from_node({"at": at, **node})
        assert event
        return event


def _time(at: object) -> float:
    step = from_node({"kind": "Step", "at": at, "step": 0, "metrics": {}})  # which raises where it is none
    assert step
    return step.at


def _in_bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * 1e9)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, by our names; of several spellings of one metric all but one keep their own."""
    given = dict[str, float]()
    scores = {f"val-core/{name}/reward/mean@1": score for name, score in (row.get("held_out") or {}).items()}
    for name, value in ({"training/epoch": row.get("epoch")} | row["metrics"] | scores).items():
        with suppress(ValueError, TypeError, OverflowError):  # a text, a picture
            given[name] = float(value)
    names = {theirs: ours for ours, theirs in by_our_names(given).items()}
    return {names.get(name, name): value for name, value in given.items()}


def folder_for(jobs: Jobs, uuid: str) -> Folder:
    """Where a logger's job is written; a job that is new is entered. One that was created and not started is the
    logger's from now on."""
    place = f"{PROJECT}/{uuid}"
    try:
        job = jobs.get(uuid)
    except Problems as problems:
        if problems.problems[0].code != "not-found":
            raise
        job = jobs.add(JobRecord(uuid, uuid, origin="logger", created_at=time.time(), place=place))
    return (job if job.record.place else jobs.change(job, origin="logger", place=place)).folder


class Ingest:
    """The jobs that loggers report to this server."""

    def __init__(self, folder_of: Callable[[str], Folder], idle_s: float = IDLE_S) -> None:
        self._folder_of, self._idle_s = folder_of, idle_s
        self._jobs: dict[str, LoggedJob] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None

    def store(self, uuid: str, session: str, first: int, rows: Sequence[Mapping[str, Any] | None]) -> int:
        """As `LoggedJob.store`, of the job of that name, which is made where it is new."""
        if self._watch is None:
            self._watch = threading.Thread(target=self._look_after, daemon=True)
            self._watch.start()
        with self._locks[uuid]:
            if (job := self._jobs.get(uuid)) is None:
                job = self._jobs[uuid] = LoggedJob(self._folder_of(uuid))
            try:
                return job.store(session, first, rows)
            except BaseException:  # what was written of the rows is found when it is opened again
                self._jobs.pop(uuid).close()
                raise

    def _look_after(self) -> None:
        while not self._closed.wait(min(LOOK_S, self._idle_s)):
            for uuid, job in list(self._jobs.items()):
                while self._with(uuid, job, job.judge):
                    pass
            self.close(self._idle_s)

    def _with(self, uuid: str, job: LoggedJob, call: Callable[[], bool]) -> bool:
        """What `call` returns; False where the job was closed."""
        with self._locks[uuid]:
            return self._jobs.get(uuid) is job and call()

    def close(self, idle_s: float = -math.inf) -> None:
        """Close the jobs that were silent for so long, by default all, for good."""
        if idle_s < 0:
            self._closed.set()
        for uuid, job in list(self._jobs.items()):
            with self._locks[uuid]:
                if time.monotonic() - job.heard > idle_s and self._jobs.get(uuid) is job:
                    self._jobs.pop(uuid).close()
