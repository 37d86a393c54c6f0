"""MLflow, at MLFLOW_TRACKING_URI; without that, in a database in the run's folder, `mlflow.db`.

MLflow's names hold no `@`: `mean@1` is `mean_at_1`, as verl writes it. Steps that are repeated after a restart have two
values, the later one with the later time; MLflow shows infinity as the largest number.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mlflow.entities import Metric, Param, Run
from mlflow.tracking import MlflowClient

from launcher.core.events import How, writable
from launcher.trackers.feed import TrackedStep
from launcher.trackers.tracker import TrackedRun, Tracker

T = TypeVar("T")
ID, ROW = "rlrun.id", "rlrun.row"
MOST_METRICS, MOST_PARAMS = 900, 90  # in one call
LONGEST_NAME, LONGEST_PARAM, LONGEST_TAG = 250, 500, 5000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow(Tracker):
    """One run of MLflow, found again by its tag."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        database = run.folder.absolute() / "mlflow.db"
        local_uri = f"sqlite:///{database}"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or local_uri
        if uri == local_uri and not database.exists():
            _make_database(database)
        self._client = MlflowClient(tracking_uri=uri)
        experiment = _get_experiment(
            self._client, run, (run.folder.absolute() / "mlartifacts").as_uri() if uri == local_uri else None
        )
        runs = self._client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'", max_results=1)
        tracked = runs[0] if runs else self._create(experiment, run)
        self._id, self.where = tracked.info.run_id, uri
        self._sent: dict[str, set[tuple[int, int]]] | None = {} if runs else None
        return int(tracked.data.tags.get(ROW, -1))

    def _create(self, experiment: str, run: TrackedRun) -> Run:
        created = self._client.create_run(experiment, tags={ID: run.id}, run_name=run.experiment)
        texts = [Param(_name(key), str(value)[:LONGEST_PARAM]) for key, value in run.config.items()]
        for params in _chunks(texts, MOST_PARAMS):
            self._client.log_batch(created.info.run_id, params=params)
        return created

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            for number, alert in enumerate(step.alerts):
                tag = f"alert.step_{alert.step}.{step.after.seq}.{number}"
                self._client.set_tag(self._id, tag, f"{alert.level}: {alert.text}"[:LONGEST_TAG])
            if step.samples:
                lines = [json.dumps(writable(asdict(sample)), ensure_ascii=False) for sample in step.samples]
                self._client.log_text(self._id, "\n".join(lines) + "\n", f"samples/step_{step.step}.jsonl")
        for metrics in _chunks(self._unsent_metrics(steps), MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics)
        self._client.set_tag(self._id, ROW, str(steps[-1].row))
        self._sent = None  # only the first call may find that a part was sent

    def _unsent_metrics(self, steps: Sequence[TrackedStep]) -> Iterator[Metric]:
        """The metrics that an earlier call, which was cut off, has not sent."""
        for step in steps:
            at = int(step.at * 1000)
            for key, value in step.metrics.items():
                name = _name(key)
                if self._sent is not None and name not in self._sent:
                    history = self._client.get_metric_history(self._id, name)
                    self._sent[name] = {(entry.timestamp, entry.step) for entry in history}
                if self._sent is None or (at, step.step) not in self._sent[name]:
                    yield Metric(name, value, at, step.step)

    def close(self, how: How | None) -> None:
        if how:
            self._client.set_terminated(self._id, STATUS[how])


def _make_database(path: Path) -> None:
    """Make a database with all tables, or none: MLflow cannot use one that a kill left incomplete."""
    part = path.with_name(f"{path.name}.part")
    for file in path.parent.glob(f"{part.name}*"):
        file.unlink()
    MlflowClient(tracking_uri=f"sqlite:///{part}").search_experiments(max_results=1)
    part.rename(path)


def _chunks(items: Iterable[T], most: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, most)):
        yield chunk


def _get_experiment(client: MlflowClient, run: TrackedRun, artifacts: str | None) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
    if experiment := client.get_experiment_by_name(name):
        return experiment.experiment_id
    return client.create_experiment(name, artifact_location=artifacts)


def _name(name: str) -> str:
    """A name in MLflow's characters (letters, digits, `_`, `-`, `.`, space, `/`), without empty parts, `.` or `..`."""
    plain = re.sub(r"[^\w/. -]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part for part in plain.split("/") if part.strip(". ")]
    return "/".join(parts)[:LONGEST_NAME] or "_"
