"""Weights & Biases. WANDB_API_KEY, WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and the other variables count as always.

A run keeps its id for life, so a resumed run goes on in the same charts, over `training/global_step`; W&B's own `_step`
is the row, which grows also where steps are repeated. W&B sends and writes in the background, so what has arrived is
asked at the server, or offline read from the files: what a kill has lost is sent again, and nothing twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from launcher.core.events import How
from launcher.trackers.feed import TrackedStep
from launcher.trackers.leveldb_log import records
from launcher.trackers.names import distribution_names
from launcher.trackers.tracker import TrackedRun, Tracker

X_AXIS = "training/global_step"
LEVELS = {"info": "INFO", "warn": "WARN", "critical": "ERROR"}


class WandB(Tracker):
    """One run of W&B."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        os.environ.pop("WANDB_SERVICE", None)  # W&B's own process of a program that started this one
        folder = Path(os.environ.get("WANDB_DIR") or run.folder)
        arrived = last_row(folder, run.id)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project, name=os.environ.get("WANDB_NAME") or run.experiment,
            id=run.id, resume="allow", dir=str(folder), config=dict(run.config),
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self._run.define_metric(X_AXIS)
        self._run.define_metric("*", step_metric=X_AXIS)
        self.where = str(folder / "wandb") if self._run.offline else self._run.url or "wandb"
        return arrived if self._run.offline else self._run.starting_step - 1

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            for alert in step.alerts:
                title = alert.rule or "alert"
                text = f"step {alert.step}: {alert.text}" + (f"\n{alert.fix}" if alert.fix else "")
                self._run.alert(title=title, text=text, level=LEVELS[alert.level])
            if row := _row(step):
                self._run.log(row, step=step.row, commit=True)

    def close(self, how: How | None) -> None:
        self._run.finish(exit_code=int(how == "failed"))


def _row(step: TrackedStep) -> dict[str, Any]:
    row: dict[str, Any] = dict(step.metrics)
    for each in step.distributions:
        for name in distribution_names(each.name):
            row[name] = wandb.Histogram(np_histogram=(list(each.counts), list(each.edges)))
    if step.samples:
        columns = ["step", "data_source", "prompt", "response", "ground_truth", "score"]
        rows = [[getattr(sample, name) for name in columns] for sample in step.samples]
        row["val/generations"] = wandb.Table(columns=columns, data=rows)
    return row and {**row, X_AXIS: step.step, "_timestamp": step.at}


def last_row(folder: Path, run_id: str) -> int:
    """The highest `_step` in the offline files of a run, as far as they are whole; -1 where there is none."""
    last = -1
    for file in folder.glob(f"wandb/offline-run-*-{run_id}*/run-{run_id}.wandb"):  # -1, -2, ... of the same second
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            rows = (item for item in record.history.item if (item.key or "".join(item.nested_key)) == "_step")
            last = max(last, *(int(json.loads(item.value_json)) for item in rows), -1)
    return last
