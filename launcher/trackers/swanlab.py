"""SwanLab. SWANLAB_API_KEY, SWANLAB_MODE, SWANLAB_LOG_DIR and the other variables count as always.

SwanLab writes in the background. What its files on this machine hold, for runs that are not sent to its server, is read
when a run is opened: what a kill has lost is sent again, and nothing twice. Its step is the row: the step itself, until
the run goes back to a checkpoint.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import swanlab
from swanlab.proto.swanlab.record.v1.record_pb2 import Record

from launcher.core.events import How
from launcher.trackers.feed import TrackedStep
from launcher.trackers.leveldb_log import records
from launcher.trackers.tracker import TrackedRun, Tracker

STEP = "training/global_step"
"""The last value of each row: a row without it is not complete."""
NO_KEY = "no API key; export SWANLAB_API_KEY=KEY, or run swanlab login, or export SWANLAB_MODE=offline"
STATES = {"finished": "success", "failed": "crashed", "stopped": "aborted"}


class SwanLab(Tracker):
    """One run of SwanLab."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        folder = Path(os.environ.get("SWANLAB_LOG_DIR") or run.folder / "swanlog")
        folder.mkdir(parents=True, exist_ok=True)
        self._arrived = _read_rows(folder, run.id)
        settings = swanlab.Settings(interactive=False, terminal={"proxy_type": "none"})
        if settings.mode == "online" and settings.api_key is None:
            raise PermissionError(NO_KEY)
        self._run = swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME") or run.project, name=run.experiment, id=run.id, resume="allow",
            log_dir=str(folder), config={key: str(value) for key, value in run.config.items()},
            settings=settings,
        )  # fmt: skip
        online = settings.mode == "online"
        self.where = settings.web_host if online else str(folder)
        return None if online else max((row for row, names in self._arrived.items() if STEP in names), default=-1)

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            values: dict[str, Any] = dict(step.metrics)
            if step.alerts:
                values["alerts"] = swanlab.Text("\n".join(f"{alert.level}: {alert.text}" for alert in step.alerts))
            if step.samples:
                texts = (f"{sample.prompt}\n\n{sample.response}" for sample in step.samples)
                scores = (sample.heading for sample in step.samples)
                values["val/samples"] = list(map(swanlab.Text, texts, scores))
            values.pop(STEP, None)  # to stand behind all others
            values[STEP] = float(step.step)  # the last one, also where nothing else of a row is left to send
            arrived = self._arrived.pop(step.row, ())  # names of a row that a kill left incomplete
            if missing := {name: value for name, value in values.items() if name not in arrived}:
                self._run.log(missing, step=step.row)

    def close(self, how: How | None) -> None:
        state = STATES[how] if how else "success"
        self._run.finish(state, error="the run failed" if state == "crashed" else None)


def _read_rows(folder: Path, run_id: str) -> dict[int, set[str]]:
    """The names of the values in each row of a run's files."""
    names_by_row = defaultdict[int, set[str]](set)
    for file in folder.glob(f"run-*-{run_id}/run-{run_id}.swanlab"):
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind in ("scalar", "media"):
                value = getattr(record, kind)
                names_by_row[value.step].add(value.key)
    return dict(names_by_row)
