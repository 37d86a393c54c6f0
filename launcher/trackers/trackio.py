"""trackio, in its database on this machine (TRACKIO_DIR), or in a Space (TRACKIO_SPACE_ID).

trackio writes in the background; on this machine its database is asked what has arrived. Its step is the row: the step
itself, until the run goes back to a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage

from launcher.core.events import How
from launcher.trackers.feed import TrackedStep
from launcher.trackers.tracker import TrackedRun, Tracker

STEP = "training/global_step"
LEVELS = {
    "info": trackio.AlertLevel.INFO,
    "warn": trackio.AlertLevel.WARN,
    "critical": trackio.AlertLevel.ERROR,
}
REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Trackio(Tracker):
    """One run of trackio."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        remote = next((os.environ[name] for name in REMOTE if os.environ.get(name)), "")
        name = f"{run.experiment}-{run.id[:6]}"  # the id is in the name, as trackio keeps no other
        self._run = trackio.init(
            project=run.project, name=name, resume="allow", config=dict(run.config), embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        self.where = remote or str(SQLiteStorage.get_project_db_path(run.project))
        if remote:
            return None
        last = SQLiteStorage.get_last_step(run.project, name)
        return -1 if last is None else last

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            for alert in step.alerts:
                self._run.alert(alert.rule or "alert", f"step {alert.step}: {alert.text}", LEVELS[alert.level])
            row: dict[str, Any] = dict(step.metrics)
            for each in step.distributions:
                row[each.name] = trackio.Histogram(np_histogram=(list(each.counts), list(each.edges)))
            for number, sample in enumerate(step.samples):
                text = f"{sample.heading}\n\n```text\n{sample.prompt}\n```\n\n```text\n{sample.response}\n```"
                row[f"val/samples/{number}"] = trackio.Markdown(text)
            if row:
                self._run.log({STEP: float(step.step), **row}, step=step.row)

    def close(self, how: How | None) -> None:
        self._run.finish()
