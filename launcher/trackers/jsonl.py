"""The tracker `file`: one JSON object a line, as verl's file logger writes them, `{"step": 3, "data": {...}}`.

It is written to VERL_FILE_LOGGER_PATH, or VERL_FILE_LOGGER_ROOT/project/experiment.jsonl, by default to metrics.jsonl
in the run's folder. Steps that are repeated after a restart are appended again: the last line of a step counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.core.events import How, writable
from launcher.trackers.feed import TrackedStep
from launcher.trackers.tracker import TrackedRun, Tracker


class OwnFile:
    """A file that a tracker appends to. What was written after the remembered `state`, before a kill, is cut off when
    the file is opened again.

    `has` is None where the file holds all that `state` says; else -1, and the run is written from its beginning: over
    the whole file where it is `ours`, else behind what others wrote.
    """

    def __init__(self, path: Path, state: Mapping[str, Any], *, ours: bool) -> None:
        self._named = str(path.absolute())
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "r+b")
        self.write, self.flush, self.close = self._file.write, self._file.flush, self._file.close
        existing_bytes = os.fstat(self._file.fileno()).st_size
        is_whole = state.get("path") == self._named and existing_bytes >= int(state["bytes"])
        self.has: int | None = None if is_whole else -1
        size = int(state["bytes"]) if is_whole else 0 if ours else existing_bytes
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def state(self) -> dict[str, Any]:
        """The state to remember: path, and size now."""
        return {"path": self._named, "bytes": self._file.tell()}

    @property
    def is_empty(self) -> bool:
        return self._file.tell() == 0


class JsonLines(Tracker):
    """Appends lines to one file."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        path = run.folder / "metrics.jsonl"
        if named := os.environ.get("VERL_FILE_LOGGER_PATH"):
            path = Path(named)
        elif root := os.environ.get("VERL_FILE_LOGGER_ROOT"):
            path = Path(root) / run.project / f"{run.experiment}.jsonl"
        self._file = OwnFile(path, state, ours=path.parent == run.folder)
        self.where, self.state = str(path), self._file.state
        return self._file.has

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            if step.metrics:
                node = writable({"step": step.step, "data": dict(step.metrics)})
                self._file.write(json.dumps(node, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.state = self._file.state

    def close(self, how: How | None) -> None:
        self._file.close()
