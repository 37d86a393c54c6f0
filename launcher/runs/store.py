"""Runs on disk: find them, read the state of each, once or as it changes, and stop them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core.events import GOES_BACK, LoggedEvent, LogReader, events_of
from launcher.core.files import write_atomic
from launcher.core.problems import Problem, Problems, path_repr, short_repr, suggest
from launcher.core.state import RunState, Sink, after, fold, write_all
from launcher.monitor.console import screen_lines
from launcher.runs import stop_requests
from launcher.runs.folder import Folder, holder, writer_here
from launcher.runs.summary import state_of

if TYPE_CHECKING:
    from launcher.clusters.slurm import SlurmJob

LOOK_S = 0.3  # between two updates of a watched run
ASK_S = 5.0  # between two queries of a queue, which all its users query
GONE = "its processes are gone; --resume continues it"
UNHEARD = "nothing is heard of its script"


@dataclass(frozen=True)
class Run:
    folder: Folder
    state: RunState


def every(root: Path) -> Iterator[Run]:
    """All runs below `root`, the one that wrote last first."""
    folders = [Folder(path.parent) for path in root.glob("*/*/spec.yaml")]
    for folder in sorted(folders, key=_last_write, reverse=True):
        yield see(folder)


def _last_write(folder: Folder) -> float:
    file = folder.events if folder.events.exists() else folder.spec
    return file.stat().st_mtime


def see(folder: Folder, reader: RunReader | None = None) -> Run:
    """A run with the state that its events make; with `reader` only events that are new to it are read. Where it has
    neither ended nor a writer, its status is failed."""
    has_writer = holder(folder) is not None  # before reading: a writer that has gone has written everything
    state = reader.look() if reader else state_of(folder, written=has_writer)
    return Run(folder, _current_state(folder, state, has_writer))


def _current_state(folder: Folder, state: RunState, has_writer: bool) -> RunState:
    if has_writer or state.status == "finished":
        return state
    if waits := queued(folder):
        return replace(state, status="waiting", phase="", why=waits)
    if state.status in ("failed", "stopped"):
        return state
    job = _queued_job(folder)
    if job and job.stopped:  # before it began, or without time to say so
        return replace(state, status="stopped", phase="")
    reason = UNHEARD if folder.is_logged else GONE
    if job:
        reason = f"{job.name} has left the queue before the run ended; see {job.log}"
    return replace(state, status="failed", phase="", why=state.why or reason)


class RunReader:
    """A run's events as they are logged, and the state that they make."""

    def __init__(self, events: Path) -> None:
        self._log = LogReader(events)
        self.state = RunState()

    def look(self) -> RunState:
        """The state of now."""
        for _ in self.new():
            pass
        return self.state

    def new(self) -> Iterator[LoggedEvent]:
        """The events logged since the last call, each after it has changed the state. Where one goes back to a
        checkpoint, the state is folded again without the steps after it."""
        for logged in self._log.new():
            event = logged.event
            if isinstance(event, GOES_BACK):
                self.state = fold(events_of(self._log.path, logged.seq))
            else:
                self.state = after(self.state, event)
            yield logged


def watch(folder: Folder, sinks: Sequence[Sink]) -> RunState:
    """Show a run until it has ended and is not queued; returns its last state."""
    reader, shown = RunReader(folder.events), ""
    while True:
        has_writer = holder(folder) is not None  # before reading, as in `see`
        events, lines = list[LoggedEvent](), list[str]()
        for logged in reader.new():
            events.append(logged)
            lines += screen_lines(logged.event, reader.state)
        state = _current_state(folder, reader.state, has_writer)
        waits = state.why if state.status == "waiting" else ""
        lines += [waits] if waits and waits != shown else []
        shown = waits
        write_all(sinks, state, events, lines)
        if not has_writer and state.status != "waiting":
            return state
        time.sleep(ASK_S if waits else LOOK_S)


def queued(folder: Folder) -> str:
    """`slurm job 12, pending (Resources)`; empty where it is in no queue."""
    job = _queued_job(folder)
    try:
        status = job.queue_status() if job else ""
    except Problems:
        status = "in a queue that does not answer"
    return f"{job.name}, {status}" if job and status else ""


def find(name: str, root: Path) -> Folder:
    """The run meant by a folder's path, `project/experiment`, or an experiment's name that is unique."""
    if folder := named(name, root):
        return folder
    if os.path.isfile(name):
        fix = "use the name of a run; rlrun status, show, watch, metrics, samples, diagnose, report, compare read logs"
        raise Problems(Problem(path_repr(name), "a file, and no run", fix, "not-found"))
    raise Problems(
        Problem(short_repr(name), f"no run of that name in {root}", suggest(name, sorted(_names(root))), "not-found")
    )


def named(name: str, root: Path, holds: str = "spec.yaml") -> Folder | None:
    """The folder of that name with a file `holds`. Raises `Problems` where several have the name."""
    for path in (Path(name), root / name):
        if folder := _folder_at(path, holds):
            return folder
    folders = _names(root, holds)
    matches = sorted(full for full in folders if full.partition("/")[2] == name)
    if len(matches) > 1:
        raise Problems(Problem(short_repr(name), f"is the name of {len(matches)} runs", f"use {' or '.join(matches)}"))
    return Folder(folders[matches[0]]) if matches else None


def _names(root: Path, holds: str = "spec.yaml") -> dict[str, Path]:
    """Each project/experiment below `root`."""
    return {f"{path.parent.parent.name}/{path.parent.name}": path.parent for path in root.glob(f"*/*/{holds}")}


def _folder_at(path: Path, holds: str) -> Folder | None:
    try:
        path = path.expanduser()
        if not (path / holds).is_file():
            return None
    except (OSError, RuntimeError):  # a name that is too long, or the home of an unknown user
        return None
    return Folder(path if path.name and ".." not in path.parts else path.resolve())  # `.` has no name to show


def stop(folder: Folder, *, now: bool, wait_s: float = 60.0) -> str:
    """Ask the run to save and end (`now`: to end at once), also from another host. Returns what happened."""
    if (job := _queued_job(folder)) and job.queue_status():
        return _stop_queued(job, now, wait_s)
    if holder(folder) is None:
        return "was not running"
    if folder.is_logged:
        got = "is what a script of another program reports"
        raise Problems(Problem(folder.name, got, "end that script", "not-permitted"))
    if pid := writer_here(folder):
        _send_stop(pid, folder, now)
    else:  # on another machine, or the lock does not name its holder
        stop_requests.ask(folder, "now" if now else "save")
    deadline = time.monotonic() + wait_s
    while holder(folder) is not None:
        if time.monotonic() > deadline:
            return f"was asked to stop and is still saving after {wait_s:.0f} s; use rlrun stop --now to end it at once"
        time.sleep(0.1)
    folder.stop_request.unlink(missing_ok=True)  # it ended before it looked
    return "stopped"


def _send_stop(pid: int, folder: Folder, now: bool) -> None:
    with suppress(OSError):
        if not now and folder.stopping.lstat().st_mtime_ns >= (folder.path / ".lock").stat().st_mtime_ns:
            return  # it saves already: a second signal would end it at once
    write_atomic(folder.stopping, "")
    with suppress(ProcessLookupError):  # killed already; its processes end by themselves
        os.kill(pid, signal.SIGTERM)
        if now:
            time.sleep(0.2)
            if holder(folder) is not None:
                os.kill(pid, signal.SIGTERM)


def _queued_job(folder: Folder) -> SlurmJob | None:
    """The run's job of Slurm, if it was submitted. Imported late, as most commands query no queue."""
    from launcher.clusters.slurm import job_of  # noqa: PLC0415

    return job_of(folder.path)


def _stop_queued(job: SlurmJob, now: bool, wait_s: float) -> str:
    job.stop(now)
    deadline = time.monotonic() + wait_s
    while status := job.queue_status():
        if time.monotonic() > deadline:
            return f"was asked to stop and is still {status} as {job.name}; use rlrun stop --now to end it at once"
        time.sleep(1)
    return f"stopped, and {job.name} has left the queue"
