"""The state of a run that has no writer, cached beside its events: `summary.json`. It is valid for one size and time of
events.jsonl, and is made again where these differ."""

from __future__ import annotations

import json
from contextlib import suppress

from pydantic import ValidationError

from launcher.core.bounded_parse import parse_json
from launcher.core.events import events_of, writable
from launcher.core.files import read_file, write_atomic
from launcher.core.settings import adapter
from launcher.core.state import RunState, fold
from launcher.runs.folder import Folder

WORTH_BYTES = 2**16
"""Least size of events.jsonl for a summary: a shorter log is read in milliseconds, and its folder is not written to."""


def state_of(folder: Folder, *, written: bool) -> RunState:
    """The state that the run's events make; `written` while a process appends to them."""
    mark = _mark(folder)
    if not written and (cached := _read(folder, mark)):
        return cached
    state = fold(events_of(folder.events))
    if not written and mark == _mark(folder):
        keep(folder, state)
    return state


def keep(folder: Folder, state: RunState) -> None:
    """Cache `state`, which the events make as they are now, where the log is long enough to be worth it."""
    mark = _mark(folder)
    if mark and mark[0] >= WORTH_BYTES:
        node = writable({"events": mark, "state": adapter(RunState).dump_python(state, mode="json")})
        with suppress(OSError):  # of another person, or a full disk
            write_atomic(folder.summary, json.dumps(node))


def _mark(folder: Folder) -> list[int] | None:
    """Size and time of the last write of the events."""
    try:
        status = folder.events.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


def _read(folder: Folder, mark: list[int] | None) -> RunState | None:
    """The cached state where it belongs to these events; else None."""
    try:
        node = parse_json(read_file(folder.summary))
        return adapter(RunState).validate_python(node["state"]) if mark and node["events"] == mark else None
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
