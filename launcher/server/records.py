"""Job records, which hold what a run does not: `job.json` in its folder or, of a job without one, `jobs/UUID.json` in
the run root. The database is an index of these."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid5

from pydantic import ValidationError

from launcher.core.bounded_parse import parse_json
from launcher.core.events import writable
from launcher.core.files import read_file, write_atomic
from launcher.core.settings import adapter

FILE = "job.json"
CREATED = "jobs"
SPACE = UUID("5c1f7a52-6a0f-5a39-9d0e-3c2f0c6d9b41")
"""The namespace of ids that are made of a name, by uuid5."""
VALID = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""A valid job id; loggers and clients may choose their own."""

JobRequest = Literal["", "start", "stop", "pause", "resume"]


@dataclass(frozen=True)
class JobRecord:
    """A job as stored in its file; fields that the file lacks have their defaults."""

    uuid: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    who: str = ""
    origin: str = "rlrun"
    """The program that trains: rlrun, or what reports here: logger, verl, trl."""
    created_at: float = 0.0
    words: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the job API (conf/job_words.yaml), as they were sent; algorithm and model also as they were planned."""
    arguments: tuple[str, ...] = ()
    """The arguments of `rlrun train` with which the server starts it."""
    log: str = ""
    """Path of the log of another program, of which `place` is the copy; empty for runs."""
    place: str = ""
    """The run's folder, relative to the run root or absolute; empty while it has none."""
    request: JobRequest = ""
    """The last request."""
    requested_at: float = 0.0
    pid: int | None = None
    """The process that was started last; it may not have written anything yet."""
    digest: str = ""
    """Of the request that created it, where that had an Idempotency-Key."""

    @property
    def node(self) -> dict[str, Any]:
        node: dict[str, Any] = writable(asdict(self))
        return node


def read_record(file: Path) -> JobRecord | None:
    """The record in a file; None where it cannot be read or is not valid."""
    with suppress(OSError, ValueError, ValidationError):
        record = adapter(JobRecord).validate_python(parse_json(read_file(file, 2**22)))
        return record if VALID.fullmatch(record.uuid) else None
    return None


def write_record(file: Path, record: JobRecord) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(file, json.dumps(record.node) + "\n")


def id_of_place(place: str) -> str:
    """The id of a run that no server started; the same for every server."""
    return str(uuid5(SPACE, place))


def id_of_key(key: str) -> str:
    """The id of the job of a request with this Idempotency-Key; the same for every server."""
    return str(uuid5(SPACE, f"Idempotency-Key: {key}"))
