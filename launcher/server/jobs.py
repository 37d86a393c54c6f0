"""The jobs: every run folder below the run root and in the folders beside it, and jobs that have not been started.

One row of each is kept in memory. A thread looks for new, changed and deleted folders by the size and time of their
files, so an ended run costs three calls of `stat`. The folders are the source of truth; the database is an index.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.exc import DatabaseError, IntegrityError

from launcher.core import machine
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.settings import adapter
from launcher.core.state import RunState
from launcher.runs import store
from launcher.runs.folder import Folder, holder
from launcher.runs.store import Run, RunReader
from launcher.server.database import Database, JobRow
from launcher.server.logs import CopiedLogs, stamp_of
from launcher.server.records import CREATED, FILE, JobRecord, id_of_place, read_record, write_record
from launcher.server.rows import Standing, job_node, standing_of, words_of_run
from launcher.views.read import LogAsFolder

LOOK_S, LOOK_SHARE = 1.0, 20  # least pause after a scan: seconds, and multiples of its duration
LIVE = ("waiting", "running", "stopping", "pausing")
Mark = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class ServedJob:
    """One job as the server knows it now."""

    record: JobRecord
    folder: Folder
    """Of a job that has not been started, a path at which nothing exists."""
    node: dict[str, Any] = field(default_factory=dict)
    """Its row in responses, the same in a list and alone; empty until its folder was read."""
    standing: Standing = field(default_factory=lambda: Standing("created"))
    state: RunState = field(default_factory=RunState)
    """That of its run, of which `node` is made."""
    mark: Mark = ()
    reader: RunReader | None = None
    """Only while the run is being written."""
    words: dict[str, Any] = field(default_factory=dict)
    """Algorithm and model of its settings."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is started or stopped."""

    @property
    def uuid(self) -> str:
        return self.record.uuid

    @property
    def has_folder(self) -> bool:
        return bool(self.record.place)


class Jobs:
    """All jobs by their id. Methods may be called from any thread."""

    def __init__(self, root: Path, also: Iterable[Path], database: Database) -> None:
        self.root, self.also, self.database = root, tuple(also), database
        self.logs = CopiedLogs(root, self.also)
        self._jobs = dict[str, ServedJob]()
        self.lock = threading.RLock()
        """Held while rows change."""
        self.reads_logs = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._scan_forever, name="jobs", daemon=True)

    # ---- reading

    def get(self, uuid: str) -> ServedJob:
        """The job of that id as it is now. Raises `Problems`."""
        with self.lock:
            job = self._jobs.get(uuid)
            if job is None:
                fix = "GET /api/jobs lists all"
                raise Problems(Problem("uuid", f"no job has {short_repr(uuid)}", fix, "not-found"))
            self._refresh(job)
            return job

    def every(self, *, unread: bool = False) -> list[ServedJob]:
        """All jobs whose folder was read, the one that began last first; with `unread` also the others."""
        jobs = [job for job in list(self._jobs.values()) if job.node or unread]  # never waits for a scan
        return sorted(jobs, key=lambda job: -(job.node.get("started_at") or job.record.created_at))

    # ---- changing

    def add(self, record: JobRecord) -> tuple[ServedJob, bool]:
        """Register a job in its file and in the database; a record with a `place` is that of the folder there. Returns
        the job, and whether it is new: a repeated request gives the existing one. Raises `Problems` where another job
        has its id, or another request had its Idempotency-Key."""
        with self.lock:
            if existing := self.repeated(record.uuid, record.digest):
                return existing, False
            if record.uuid in self._jobs:
                raise Problems(Problem("uuid", f"{short_repr(record.uuid)} is taken", "use another", "in-use"))
            try:
                with self.database.session() as session:
                    session.add(_row_of(record))
            except IntegrityError:
                self._read_rows(JobRow.uuid == record.uuid)
                if record.uuid in self._jobs:  # another server has just stored it
                    return self.add(record)
                self._index(record)  # in place of a row that cannot be read
            try:
                write_record(self._record_path(record), record)
            except (OSError, Problems):
                with self.database.session() as session:
                    session.execute(delete(JobRow).where(JobRow.uuid == record.uuid))
                raise
            self._refresh(job := self._register(record))
            return job, True

    def repeated(self, uuid: str, digest: str) -> ServedJob | None:
        """The job that an earlier request with an Idempotency-Key made: `uuid` is of that key, `digest` of the request,
        empty without a key. Raises `Problems` where that was another request."""
        with self.lock:
            if digest and uuid not in self._jobs:  # another server may have made it
                self._read_rows(JobRow.uuid == uuid)
            if not digest or uuid not in self._jobs:
                return None
            if self._jobs[uuid].record.digest != digest:
                got = "was sent before with another request"
                raise Problems(Problem("Idempotency-Key", got, "use a new key for a new request", "in-use"))
            return self.get(uuid)

    def change(self, job: ServedJob, **fields: Any) -> ServedJob:
        """Replace fields of a job's record, such as name, place or request."""
        with self.lock:
            old_file, record = self._record_path(job.record), replace(job.record, **fields)
            write_record(self._record_path(record), record)  # before the job has it, as this may fail
            job.record, job.folder = record, self._folder_of(record)
            self._index(record)
            if old_file != self._record_path(record):
                old_file.unlink(missing_ok=True)
            self._jobs[job.uuid] = job  # a scan may have forgotten it
            job.mark = ()
            self._refresh(job)
            return job

    @contextmanager
    def claimed(self, job: ServedJob) -> Iterator[None]:
        """One server of this run root at a time starts a job. Raises `Problems` where another one has started it."""
        path = self._record_path(job.record)
        lock = path.with_suffix(".lock")  # the record itself is replaced by each change
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists():  # a started job has its record in its folder
                raise Problems(Problem(job.uuid, "was started", "GET it again", "changed"))
            yield
            lock.unlink()

    def _index(self, record: JobRecord) -> None:
        with self.database.session() as session:
            session.merge(_row_of(record))

    def _record_path(self, record: JobRecord) -> Path:
        """The record of a run outside the run root, which may be another person's, lies below the run root."""
        is_below_root = record.place and not os.path.isabs(record.place)
        return self.root / record.place / FILE if is_below_root else self.root / CREATED / f"{record.uuid}.json"

    def _folder_of(self, record: JobRecord) -> Folder:
        path = self.root / (record.place or f"{CREATED}/{record.uuid}")
        return LogAsFolder(path, record.log) if record.log else Folder(path)

    def place_of(self, folder: Folder) -> str:
        """A folder as a record's `place` names it: relative to the run root."""
        return str(folder.path.absolute().relative_to(self.root.absolute()))

    def _register(self, record: JobRecord) -> ServedJob:
        job = self._jobs[record.uuid] = ServedJob(record, self._folder_of(record))
        return job

    # ---- looking

    def start(self, *, reindex: bool = False) -> None:
        """Read the database, scan all run folders once, and go on scanning in a thread until `stop`. Logs, which may
        take long to read, are read by the thread."""
        with self.lock:
            if reindex:
                with self.database.session() as session:
                    session.execute(delete(JobRow))
            self._read_rows()
            for file in sorted((self.root / CREATED).glob("*.json")):
                record_ = read_record(file)
                if record_ and record_.uuid not in self._jobs:
                    self._adopt(record_)
        self.scan(logs=False)
        self._thread.start()

    def _read_rows(self, *where: ColumnElement[bool]) -> None:
        """Register the jobs of these rows of the database."""
        with self.database.session() as session:
            rows = list(session.scalars(select(JobRow).where(*where)))
        for row in rows:
            with suppress(ValueError):
                record = adapter(JobRecord).validate_python(row.record)
                if not record.log:
                    self._register(record)

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _scan_forever(self) -> None:
        while True:
            start = time.monotonic()
            with suppress(OSError, DatabaseError):  # a full disk: the next look finds what this one has left
                self.scan()
            if self._end.wait(max(LOOK_S, LOOK_SHARE * (time.monotonic() - start))):
                return

    def scan(self, *, logs: bool = True) -> None:
        """Register new folders, read changed ones, forget deleted ones. Logs are read without holding `lock`."""
        paths = dict.fromkeys(self._run_folders(self._known_folders()))
        if logs:
            with self.reads_logs:
                paths |= dict.fromkeys(self.logs.look())
        with self.lock:
            known = self._known_folders()
            for path in paths:
                if path not in known and self._is_shown(record := self._record_of(Path(path))):
                    self._adopt(record)
            for job in list(self._jobs.values()):
                if job.has_folder and str(job.folder.path) not in paths and not job.folder.path.is_dir():
                    self._forget(job)
                else:
                    self._refresh(job)

    def _known_folders(self) -> set[str]:
        return {str(job.folder.path) for job in list(self._jobs.values())}

    def _run_folders(self, known: set[str]) -> Iterator[str]:
        """Those of `also` that are runs, and each PROJECT/EXPERIMENT below the others and the run root that holds one;
        `known` ones are not checked again."""
        for root in (self.root, *self.also):
            if root != self.root and _is_run(str(root)):
                yield str(root)
                continue
            for project in _folders_in(str(root)):
                yield from (path for path in _folders_in(project) if path in known or _is_run(path))

    def _record_of(self, path: Path) -> JobRecord:
        """The record in the folder's file, or a new one where that file was copied with the folder of another job."""
        is_below_root = path.parents[1] == self.root
        place = f"{path.parent.name}/{path.name}" if is_below_root else str(path.absolute())
        if log := self.logs.get(path):
            return replace(read_record(path / FILE) or log.record, place=log.record.place)
        stored = read_record(path / FILE)
        known = self._jobs.get(stored.uuid) if stored else None
        if stored and (known is None or known.folder.path == path or not known.has_folder):  # another server started it
            return replace(stored, place=place)
        with suppress(OSError):
            return JobRecord(id_of_place(place), place=place, created_at=path.stat().st_mtime)
        return JobRecord(id_of_place(place), place=place)

    def _adopt(self, record: JobRecord) -> None:
        """Register a job that was found on disk, without writing to its folder."""
        self._index(record)
        self._register(record)

    def _is_shown(self, record: JobRecord) -> bool:
        """False for the folder of a log that is no longer shown: what was read of a log stays on disk."""
        return not record.log or self.logs.get(self.root / record.place) is not None

    def _forget(self, job: ServedJob) -> None:
        """Remove a job whose folder was deleted or moved."""
        with self.database.session() as session:
            session.execute(delete(JobRow).where(JobRow.uuid == job.uuid))
        del self._jobs[job.uuid]

    def _refresh(self, job: ServedJob) -> None:
        """Update a job from its folder, if that has changed or the run is live."""
        mark = _mark(job.folder)
        if mark == job.mark and job.standing.status not in LIVE:
            return
        if mark[-1:] != job.mark[-1:]:
            job.words = words_of_run(job.folder)
        run = self._read_state(job) if job.has_folder else None
        job.state = run.state if run else RunState()
        job.standing = standing_of(job.record, run, job.folder, begins=self.begins(job))
        job.node = job_node(job.record, run, job.standing, job.words, attempt=len(job.folder.attempts()))
        job.mark = mark

    def begins(self, job: ServedJob) -> bool:
        """Whether the process that was started last is alive; it may not have written anything yet."""
        pid = job.record.pid
        return pid is not None and machine.has_open(pid, job.folder.detached)

    def _read_state(self, job: ServedJob) -> Run | None:
        folder = job.folder
        if log := self.logs.get(folder.path):
            return Run(folder, log.state)
        if holder(folder) is None:
            job.reader = None
            return store.see(folder) if folder.spec.is_file() or folder.events.is_file() else None
        job.reader = job.reader or RunReader(folder.events)
        return store.see(folder, job.reader)


def _row_of(record: JobRecord) -> JobRow:
    return JobRow(uuid=record.uuid, place=record.place, record=record.node)


def _folders_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return []


def _is_run(path: str) -> bool:
    return any(os.path.isfile(f"{path}/{name}") for name in ("spec.yaml", FILE))


def _mark(folder: Folder) -> Mark:
    """Equal for two looks where nothing about the run has changed; the last is that of its settings."""
    path = str(folder.path)
    return stamp_of(f"{path}/events.jsonl"), stamp_of(f"{path}/.lock"), stamp_of(f"{path}/spec.yaml")
