"""The jobs: every run folder below the run root and in the folders beside it, and jobs that have not been started.

One row of each is kept in memory. A thread looks for new, changed and gone folders: by the size and time of their
files, so that a run that nobody writes costs three calls of `stat`. Folders are the truth; the database is an index.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from launcher.core import machine
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.settings import adapter
from launcher.runs import store
from launcher.runs.folder import Folder, holder
from launcher.runs.store import Run, RunReader
from launcher.server.answers import encoded
from launcher.server.database import Database, JobRow, KeyRow
from launcher.server.logs import CopiedLogs, stamp_of
from launcher.server.records import CREATED, FILE, VALID, JobRecord, id_of_place, read_record, write_record
from launcher.server.rows import Standing, job_node, standing_of, words_of_run
from launcher.views.read import LogAsFolder

LOOK_S, LOOK_SHARE = 1.0, 20  # between two looks at all folders, or so many times what the last one took
FRESH_S = 0.1  # ... for the sake of an id that is not known, as of a run that has just begun
LIVE = ("waiting", "running", "stopping", "pausing")
Mark = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class ServedJob:
    """One job as the server knows it now."""

    record: JobRecord
    folder: Folder
    """Of a job that has not been started: where it would be, and nothing is there."""
    node: dict[str, Any] = field(default_factory=dict)
    """What a list and a single answer say of it."""
    body: bytes = b""
    """The same as JSON: a list of a thousand jobs only joins them."""
    standing: Standing = field(default_factory=lambda: Standing("created"))
    mark: Mark = ()
    reader: RunReader | None = None
    """While it is written."""
    words: dict[str, Any] = field(default_factory=dict)
    spec: tuple[int, int] = (0, 0)
    """Size and time of the spec.yaml that `words` are of."""
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
        self.at_each_look = list[Callable[[], None]]()
        self._scanned = 0.0
        self._jobs = dict[str, ServedJob]()
        self._at = dict[str, ServedJob]()
        self.lock = threading.RLock()
        """Held while rows change."""
        self.reads_logs = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="jobs", daemon=True)

    # ---- reading

    def get(self, uuid: str) -> ServedJob:
        """The job of that id as it is now. Raises `Problems`."""
        if uuid not in self._jobs and time.monotonic() - self._scanned > FRESH_S:
            self._take_in(list(self._runs()))
        with self.lock:
            found = self._jobs.get(uuid)
            if found is None:
                fix = "GET /api/jobs lists all"
                raise Problems(Problem("uuid", f"no job has {short_repr(uuid)}", fix, "not-found"))
            self._look(found)
            return found

    def every(self, *, unread: bool = False) -> list[ServedJob]:
        """All jobs that were looked at, the one that began last first; with `unread` also the others."""
        jobs = [job for job in list(self._jobs.values()) if job.body or unread]  # nobody waits for a look at all
        return sorted(jobs, key=lambda job: -(job.node.get("started_at") or job.record.created_at))

    # ---- changing

    def add(self, record: JobRecord) -> ServedJob:
        """Enter a job, in its file and in the database; a record with a place is that of the folder there. Raises
        `Problems` where another job has its id."""
        return self.add_once(record)[0]

    def add_once(self, record: JobRecord) -> tuple[ServedJob, bool]:
        """The job, and whether it is new: of the same Idempotency-Key and request it is there already. Raises
        `Problems` also where its key is that of another request."""
        with self.lock:
            if record.uuid in self._jobs or not VALID.fullmatch(record.uuid):
                got = f"{short_repr(record.uuid)} is taken, or no id"
                raise Problems(Problem("uuid", got, "use another", "in-use"))
            if record.key and (made := self.of_key(record.key, record.digest)):
                return made, False
            job = ServedJob(record, self._folder_of(record))
            try:
                self._keep(job)
            except IntegrityError:  # of another server with this database, at the same moment
                self._file(record).unlink(missing_ok=True)
                if record.key and (made := self.of_key(record.key, record.digest)):
                    return made, False
                raise
            self._enter(job)
            self._look(job)
            return job, True

    def of_key(self, key: str, digest: str) -> ServedJob | None:
        """The job that a request with this Idempotency-Key made. Raises `Problems` where that was another request."""
        with self.database.session() as session:
            row = session.get(KeyRow, key)
        if row is None:
            return None
        if row.digest != digest:
            got = "was sent before with another request"
            raise Problems(Problem("Idempotency-Key", got, "use a new key for a new request", "in-use"))
        return self.get(row.uuid)

    def change(self, job: ServedJob, **fields: Any) -> ServedJob:
        """Another name, place or request of a job."""
        with self.lock:
            before = self._file(job.record)
            job.record = replace(job.record, **fields)
            self._at.pop(str(job.folder.path), None)
            job.folder = self._folder_of(job.record)
            self._keep(job)
            if before != self._file(job.record):
                before.unlink(missing_ok=True)
            self._enter(job)
            self._look(job, anew=True)
            return job

    def _keep(self, job: ServedJob) -> None:
        """In its file first: what the database lacks is read from there."""
        record = job.record
        write_record(self._file(record), record)
        self._index(record)

    def _index(self, record: JobRecord) -> None:
        with self.database.session() as session:
            session.merge(JobRow(uuid=record.uuid, place=record.place, record=record.node))
            if record.key and not session.get(KeyRow, record.key):
                session.add(KeyRow(key=record.key, digest=record.digest, uuid=record.uuid))

    def _file(self, record: JobRecord) -> Path:
        """Of a run elsewhere, which may be another person's, the record lies here."""
        own = record.place and not os.path.isabs(record.place)
        return self.root / record.place / FILE if own else self.root / CREATED / f"{record.uuid}.json"

    def _folder_of(self, record: JobRecord) -> Folder:
        path = self.root / (record.place or f"{CREATED}/{record.uuid}")
        return LogAsFolder(path, record.log) if record.log else Folder(path)

    def place_of(self, folder: Folder) -> str:
        """How a record names a folder."""
        return str(folder.path.absolute().relative_to(self.root.absolute()))

    def _enter(self, job: ServedJob) -> None:
        self._jobs[job.uuid] = job
        self._at[str(job.folder.path)] = job

    # ---- looking

    def start(self, *, reindex: bool = False) -> None:
        """Read what is known, look at every run folder once, and go on looking until `stop`; logs, which may take long
        to be read, come then."""
        with self.lock:
            if reindex:
                with self.database.session() as session:
                    session.execute(delete(JobRow))
            for row in self.database.jobs():
                with suppress(ValueError):
                    record = adapter(JobRecord).validate_python(row.record)
                    if not record.log:
                        self._enter(ServedJob(record, self._folder_of(record)))
            for file in sorted((self.root / CREATED).glob("*.json")):
                record_ = read_record(file)
                if record_ and record_.uuid not in self._jobs:
                    self._adopt(record_)
        self.scan(logs=False)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look_on(self) -> None:
        while True:
            begun = time.monotonic()
            self.scan()
            for call in self.at_each_look:
                call()
            if self._end.wait(max(LOOK_S, LOOK_SHARE * (time.monotonic() - begun))):
                return

    def _take_in(self, paths: Iterable[str]) -> None:
        """Enter those that are new."""
        self._scanned = time.monotonic()
        with self.lock:
            for path in paths:
                if path not in self._at and self._is_shown(record := self._record_of(Path(path))):
                    self._adopt(record)

    def scan(self, *, logs: bool = True) -> None:
        """New folders come, changed ones are read, gone ones go. Nobody waits while a log is read."""
        found = list(self._runs())
        if logs:
            with self.reads_logs:
                found += self.logs.look()
        self._take_in(found)
        there = set(found)
        with self.lock:
            for job in list(self._jobs.values()):
                if job.has_folder and str(job.folder.path) not in there and not job.folder.path.is_dir():
                    self._forget(job)
                else:
                    self._look(job)

    def _runs(self) -> Iterator[str]:
        """Each run folder."""
        yield from self._runs_below(str(self.root))
        for named in self.also:
            yield from [str(named)] if _is_run(str(named)) else self._runs_below(str(named))

    def _runs_below(self, root: str) -> Iterator[str]:
        """`root/PROJECT/EXPERIMENT` that hold a run; what is known is not asked again."""
        for project in _folders_in(root):
            for path in _folders_in(project):
                if path in self._at or _is_run(path):
                    yield path

    def _record_of(self, path: Path) -> JobRecord:
        """As its file says, unless that was copied with the folder of another job."""
        own = path.parents[1] == self.root
        place = f"{path.parent.name}/{path.name}" if own else str(path.absolute())
        if log := self.logs.get(path):
            return replace(read_record(path / FILE) or log.record, place=log.record.place)
        known = read_record(path / FILE)
        if known and (known.uuid not in self._jobs or self._jobs[known.uuid].folder.path == path):
            return replace(known, place=place)
        with suppress(OSError):
            return JobRecord(id_of_place(place), place=place, created_at=path.stat().st_mtime)
        return JobRecord(id_of_place(place), place=place)

    def _adopt(self, record: JobRecord) -> None:
        """Enter a job that was found; its folder stays as it is."""
        self._index(record)
        self._enter(ServedJob(record, self._folder_of(record)))

    def _is_shown(self, record: JobRecord) -> bool:
        """What was read of a log stays in its folder when the log is shown no more."""
        return not record.log or self.logs.get(self.root / record.place) is not None

    def _forget(self, job: ServedJob) -> None:
        """Its folder was deleted or moved."""
        with self.database.session() as session:
            session.execute(delete(JobRow).where(JobRow.uuid == job.uuid))
        del self._jobs[job.uuid]
        self._at.pop(str(job.folder.path), None)

    def _look(self, job: ServedJob, *, anew: bool = False) -> None:
        """Read what has changed of it."""
        mark = _mark(job.folder)
        if mark == job.mark and job.node and not anew and job.standing.status not in LIVE:
            return
        run = self._see(job) if job.has_folder else None
        self._read_words(job)
        standing = standing_of(job.record, run, job.folder, begins=self.begins(job))
        node = job_node(job.record, run, standing, job.words, attempt=len(job.folder.attempts()))
        job.mark = mark
        if node != job.node:
            job.node, job.body, job.standing = node, encoded(node), standing

    def begins(self, job: ServedJob) -> bool:
        """Whether the process that was started last is there, and may not have begun to write."""
        pid = job.record.pid
        return pid is not None and machine.has_open(pid, job.folder.detached)

    def _see(self, job: ServedJob) -> Run | None:
        folder = job.folder
        if log := self.logs.get(folder.path):
            return Run(folder, log.state)
        if job.record.origin not in ("rlrun", "logger"):  # its lock is nobody's: its events say whether it goes on
            job.reader = job.reader or RunReader(folder.events)
            return Run(folder, job.reader.look())
        if holder(folder) is None:
            job.reader = None
            return store.see(folder) if folder.spec.is_file() or folder.events.is_file() else None
        job.reader = job.reader or RunReader(folder.events)
        return store.follow(folder, job.reader)

    def _read_words(self, job: ServedJob) -> None:
        """The documents' words of its settings, again where its spec.yaml has changed."""
        spec = stamp_of(str(job.folder.spec))
        if spec != job.spec:
            job.spec, job.words = spec, words_of_run(job.folder)


def _folders_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return [one.path for one in found if one.is_dir(follow_symlinks=False) and one.name[0] != "."]
    except OSError:
        return []


def _is_run(path: str) -> bool:
    return any(os.path.isfile(f"{path}/{name}") for name in ("spec.yaml", FILE))


def _mark(folder: Folder) -> Mark:
    """By which it is seen whether anything about a run has changed."""
    path = str(folder.path)
    return stamp_of(f"{path}/events.jsonl"), stamp_of(f"{path}/.lock"), stamp_of(f"{path}/spec.yaml")
