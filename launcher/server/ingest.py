"""Rows that training scripts' loggers report, stored as events of runs below `logged/`: each exactly once, also when
the server is killed. A row is one line of events.jsonl with its session and number, by which a reopened log knows it:

    {"seq":7,"attempt":1,"session":"18c0-5f","row":4,"kind":"Step","at":1700000000.0,"step":3,"metrics":{"loss":1.2}}
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import orjson

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
from launcher.core.files import AppendOnlyFile, write_atomic
from launcher.core.metric_aliases import by_our_names
from launcher.core.problems import Problem, Problems, error_message
from launcher.core.redaction import redact
from launcher.core.settings import adapter
from launcher.core.state import RunState, after
from launcher.monitor.console import console_lines
from launcher.runs.folder import LOGGED, Folder, Lock
from launcher.server.jobs import Jobs
from launcher.server.live import LogPosition
from launcher.server.records import JobRecord
from launcher.views.findings import judge_of
from launcher.views.record import RunRecord

PROJECT = "logged"
DEEPEST = 8  # levels of metrics in metrics
IDLE_S, LOOK_S = 60.0, 5.0
"""A job whose loggers send nothing for so long is closed; a logger sends something every 5 s."""
LEVELS = {"failed": "critical", "error": "critical", "warning": "warn", "warn": "warn"}
"""The level of the alert that a reported status becomes; `info` for all others."""


@dataclass(frozen=True, kw_only=True)
class LoggerSession(Event):
    """A session of a logger began, or has ended. Readers of runs skip its line, as they skip kinds of events that
    they do not know."""

    open: bool


@dataclass
class LoggedRows:
    """The state of an event log that its writer needs."""

    seq: int = 0
    """The number of the next line."""
    attempt: int = 1
    status: str = ""
    """`running` or `ended`; empty before its first event."""
    step: int = 0
    following: dict[str, int] = field(default_factory=dict)
    """By session, the number of the next row that is expected."""
    begun: dict[str, float] = field(default_factory=dict)
    """When each session began."""
    ended_at: float = 0.0
    open: set[str] = field(default_factory=set)
    """Sessions that have not ended."""
    alerts: set[tuple[int, str]] = field(default_factory=set)
    """Step and text of each alert, so that none is written twice."""

    @classmethod
    def read(cls, path: Path) -> LoggedRows:
        """The state of the log at `path`; an incomplete last line, which a kill left, is truncated."""
        rows, end = cls(), LogPosition(path)
        for _, line in end.lines():
            rows.see(line)
        os.truncate(path, end.offset)
        return rows

    def see(self, line: bytes) -> None:
        self.seq += 1
        try:
            node = orjson.loads(line)
            self.attempt = node["attempt"]
            if session := node.get("session"):
                self.following[session] = node["row"] + 1
            match node["kind"]:
                case "LoggerSession":
                    (self.open.add if node["open"] else self.open.discard)(session)
                    self.begun.setdefault(session, node["at"])
                case "Started" | "Resumed":
                    self.status = "running"
                case "Ended":
                    self.status, self.ended_at = "ended", node["at"]
                case "Step":
                    self.step = node["step"]
                case "Alert":
                    self.alerts.add((node["step"], node["text"]))
        except INVALID:  # a damaged line has its number, and nothing else
            return


class LoggedJob:
    """The only writer of a job's folder. Raises `Problems` where another process writes it, or it is the folder of a
    run that no logger made."""

    def __init__(self, folder: Folder) -> None:
        folder.check_no_link()
        if folder.spec.exists() and not folder.is_logged:
            got = "is a run that was not made by a logger"
            raise Problems(Problem(folder.name, got, "use another job_uuid", "in-use"))
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.check()
        self.folder, self.heard = folder, time.monotonic()
        self._lock = Lock(folder, wait_s=1.0, named=False)
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            if not folder.spec.exists():
                names = {"project_name": folder.path.parent.name, "experiment_name": folder.path.name}
                write_atomic(folder.spec, LOGGED.decode() + f"trainer: {json.dumps(names)}\n")
            folder.events.touch(0o600)
            self._log = LoggedRows.read(folder.events)
            self._events, self._console = AppendOnlyFile.open(folder.events), AppendOnlyFile.open(folder.console)
            stack.pop_all()
        self._state = RunState()  # after the events written since it was opened; console.log needs it
        self._unjudged = LogReader(folder.events)
        self._reset_judge()

    def store(self, session: str, first: int, rows: Sequence[Mapping[str, Any] | None]) -> int:
        """Write and sync those of `rows`, numbered from `first`, that are new; returns the next row's number. Nothing
        is stored where earlier rows are missing. Raises `Problems` where the disk fails: the job must be closed."""
        self.heard = time.monotonic()
        following = self._log.following.get(session, 0)
        if first > following or first + len(rows) <= following:
            return following
        for number, row in enumerate(rows[following - first :], following):
            if row is not None:
                self._store_row(row, session, number)
        self._events.sync()
        if refused := self._events.refused:
            raise Problems(Problem(self.folder.name, error_message(refused), "make room on the disk", "not-enough"))
        self._log.following[session] = first + len(rows)
        self.judge(2 * len(rows))  # so that little is left to judge when the job ends
        return first + len(rows)

    def _reset_judge(self) -> None:
        """Start a judge that has seen no event."""
        self._judge = judge_of(None, "unknown")
        self._record = RunRecord(self.folder, RunState(), partial(events_of, self.folder.events))

    def judge(self, most: int = 500) -> bool:
        """Judge up to `most` events and write the alerts that they raise; False where no event was left."""
        events = list(islice(self._unjudged.new(), most))
        for logged in events:
            undoes = isinstance(logged.event, GOES_BACK)
            if undoes:
                self._reset_judge()
            for event in events_of(self.folder.events, logged.seq) if undoes else (logged.event,):
                self._record.state = after(self._record.state, event)
                self._record.take(event)
                for alert in self._judge.see(event):
                    if (alert.step, alert.text) not in self._log.alerts:
                        self._write(alert)
        return bool(events)

    def close(self) -> None:
        self._events.close()
        self._console.close()
        self._lock.__exit__()

    def _write(self, event: Event, **mark: Any) -> None:
        line = redact(to_line(event, seq=self._log.seq, attempt=self._log.attempt, **mark)).encode()
        self._log.see(line)
        self._events.write(line + b"\n")
        self._state = after(self._state, event)
        for text in console_lines(event, self._state):
            self._console.append(text)

    def _store_row(self, row: Mapping[str, Any], session: str, number: int) -> None:
        try:
            event = self._event_from_row(row)
        except INVALID as error:
            text = f"row {number} of session {session} was left out: {' '.join(error_message(error).split())[:300]}"
            event = Alert(step=self._log.step, text=text, rule="logger")
        log = self._log
        if isinstance(event, Step) and log.status == "ended":
            log.attempt += 1
            is_late = log.begun.get(session, math.inf) < log.ended_at  # late rows undo nothing
            step = log.step if is_late else min(event.step - 1, log.step)  # else a restart, perhaps from a checkpoint
            self._write(Resumed(at=event.at, step=step, attempt=log.attempt))
            log.status = ""
        if not log.status:
            self._write(Started(at=event.at, run=self.folder.name, algorithm="", processes=1))
        if isinstance(event, LoggerSession) and not event.open and log.status != "ended" and log.open <= {session}:
            while self.judge():
                pass
            verdict = replace(self._record.verdict, fix="")  # the fix names settings of rlrun
            how, why, at = row.get("how", "finished"), str(row.get("why", "")), event.at
            if how == "finished":  # the total of steps is known only now
                self._write(LogProgress(at=at, step=log.step, steps=log.step))
            self._write(Ended(at=at, how=how, why=why, verdict=verdict))
        self._write(event, session=session, row=number)

    def _event_from_row(self, row: Mapping[str, Any]) -> Event:
        """The event that a row describes. Raises `INVALID` where its kind is unknown or a value is not valid."""
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
            case "begin" | "finish":
                if row.get("how", "finished") not in get_args(How):
                    raise ValueError(f"how: {row['how']!r} is none of {', '.join(get_args(How))}")
                session: Event = adapter(LoggerSession).validate_python({"at": at, "open": kind == "begin"})
                return session
            case _:
                raise ValueError(f"kind: {kind!r} is none of metrics, gpu, checkpoint, status, begin, finish")
        event = from_node({"at": at, **node})
        assert event
        return event


def _in_bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * 1e9)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row under our metric names; if two names mean one metric, only one of them is translated."""
    values = dict[str, float]()
    scores = {f"val-core/{name}/reward/mean@1": score for name, score in (row.get("held_out") or {}).items()}
    reported: dict[str, Any] = {"training/epoch": row.get("epoch"), **dict(_flat(row["metrics"])), **scores}
    for name, value in reported.items():
        with suppress(ValueError, TypeError, OverflowError):  # not a number: a text, a picture
            values[name] = float(value)
    names = {theirs: ours for ours, theirs in by_our_names(values).items()}
    return {names.get(name, name): value for name, value in values.items()}


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its name; that of a nested one is `outer/inner`, as in verl."""
    for name, value in metrics.items():
        nested = isinstance(value, Mapping) and prefix.count("/") < DEEPEST
        yield from _flat(value, f"{prefix}{name}/") if nested else [(f"{prefix}{name}", value)]


def folder_for(jobs: Jobs, uuid: str) -> Folder:
    """The folder of a logger's job, which is registered where it is new. A job that was created but not started
    becomes the logger's. Raises `Problems`."""
    place = f"{PROJECT}/{uuid}"
    try:
        job = jobs.get(uuid)
    except Problems as problems:
        if problems.problems[0].code != "not-found":
            raise
        job = jobs.add(JobRecord(uuid, uuid, origin="logger", created_at=time.time(), place=place))[0]
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
        """`LoggedJob.store` of the job with this id, which is opened first where it is not open. Raises `Problems`."""
        if self._watch is None:
            self._watch = threading.Thread(target=self._watch_jobs, daemon=True)
            self._watch.start()
        with self._locks[uuid]:
            if (job := self._jobs.get(uuid)) is None:
                job = self._jobs[uuid] = LoggedJob(self._folder_of(uuid))
            try:
                return job.store(session, first, rows)
            except BaseException:  # reopening reads from the log which rows were written
                self._jobs.pop(uuid).close()
                raise

    def _watch_jobs(self) -> None:
        while not self._closed.wait(min(LOOK_S, self._idle_s)):
            for uuid in list(self._jobs):
                while self._judge(uuid):
                    pass
            self.close(self._idle_s)

    def _judge(self, uuid: str) -> bool:
        with self._locks[uuid]:
            return uuid in self._jobs and self._jobs[uuid].judge()

    def close(self, idle_s: float = -math.inf) -> None:
        """Close the jobs that were silent for so long; by default close all of them, and stop watching."""
        if idle_s < 0:
            self._closed.set()
        for uuid, job in list(self._jobs.items()):
            with self._locks[uuid]:
                if time.monotonic() - job.heard > idle_s and self._jobs.get(uuid) is job:
                    self._jobs.pop(uuid).close()
