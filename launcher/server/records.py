"""What is known of a job beside its run: `job.json` in its folder, and of a job without one `jobs/UUID.json` below the
run root. The database is an index of these."""

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
"""Of the ids of runs that no server started: the uuid5 of their place."""
VALID = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""What a program may choose as an id."""

JobRequest = Literal["", "start", "stop", "pause", "resume"]


@dataclass(frozen=True)
class JobRecord:
    """A job, as its file has it; of fields that a file lacks the defaults."""

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
    """The documents' fields, as they were sent."""
    planned: Mapping[str, Any] = field(default_factory=dict)
    """The same fields as its plan had them, shown until the run has settings."""
    arguments: tuple[str, ...] = ()
    """What follows `rlrun train` where a server starts it."""
    log: str = ""
    """The log of another program that it is; `place` has what was read of it."""
    place: str = ""
    """The run's folder, below the run root or whole; empty while it has none."""
    request: JobRequest = ""
    """What was asked for last."""
    requested_at: float = 0.0
    pid: int | None = None
    """The process that was started last, which may not have begun to write yet."""
    key: str = ""
    digest: str = ""
    """Idempotency-Key of the request that created it, and the request's digest."""

    @property
    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = writable(asdict(self))
        return found


def read_record(file: Path) -> JobRecord | None:
    """None where there is no such file, or it holds no record."""
    with suppress(OSError, ValueError, ValidationError):
        found = adapter(JobRecord).validate_python(parse_json(read_file(file, 2**22)))
        return found if VALID.fullmatch(found.uuid) else None
    return None


def write_record(file: Path, record: JobRecord) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(file, json.dumps(record.node) + "\n")


def id_of_place(place: str) -> str:
    """Of a run that no server started."""
    return str(uuid5(SPACE, place))
