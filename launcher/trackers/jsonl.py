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
from launcher.trackers.own_file import OwnFile
from launcher.trackers.tracker import TrackedRun


class JsonLines:
    """Appends lines to one file."""

    where = ""

    def __init__(self) -> None:
        self.state: Mapping[str, Any] = {}

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        path = _path(run)
        self._file = OwnFile(path, state, ours=path.parent == run.folder)
        self.where, self.state = str(path), self._file.state
        return self._file.has

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            if step.metrics:
                node = writable({"step": step.step, "data": dict(step.metrics)})
                line = json.dumps(node, ensure_ascii=False, allow_nan=False)
                self._file.write(line.encode() + b"\n")
        self._file.flush()
        self.state = self._file.state

    def close(self, how: How | None) -> None:
        self._file.close()


def _path(run: TrackedRun) -> Path:
    if path := os.environ.get("VERL_FILE_LOGGER_PATH"):
        return Path(path)
    if root := os.environ.get("VERL_FILE_LOGGER_ROOT"):
        return Path(root) / run.project / f"{run.experiment}.jsonl"
    return run.folder / "metrics.jsonl"
