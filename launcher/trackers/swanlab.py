"""SwanLab. SWANLAB_API_KEY, SWANLAB_MODE, SWANLAB_LOG_DIR and the other variables count as always.

SwanLab writes in the background, and the remembered position says what has arrived. Its step is the row: the step
itself, until the run goes back to a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import swanlab

from launcher.core.events import How
from launcher.trackers.feed import TrackedStep
from launcher.trackers.tracker import TrackedRun, Tracker

STEP = "training/global_step"
NO_KEY = "no API key; export SWANLAB_API_KEY=KEY, or run swanlab login, or export SWANLAB_MODE=offline"
STATES = {"finished": "success", "failed": "crashed", "stopped": "aborted"}


class SwanLab(Tracker):
    """One run of SwanLab."""

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> int | None:
        folder = Path(os.environ.get("SWANLAB_LOG_DIR") or run.folder / "swanlog")
        folder.mkdir(parents=True, exist_ok=True)
        settings = swanlab.Settings(interactive=False, terminal={"proxy_type": "none"})
        if settings.mode == "online" and settings.api_key is None:
            raise PermissionError(NO_KEY)
        self._run = swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME") or run.project, name=run.experiment, id=run.id, resume="allow",
            log_dir=str(folder), config={key: str(value) for key, value in run.config.items()},
            settings=settings,
        )  # fmt: skip
        self.where = settings.web_host if settings.mode == "online" else str(folder)
        return None

    def log(self, steps: Sequence[TrackedStep]) -> None:
        for step in steps:
            values: dict[str, Any] = {**step.metrics, STEP: float(step.step)}
            if step.alerts:
                values["alerts"] = swanlab.Text("\n".join(f"{alert.level}: {alert.text}" for alert in step.alerts))
            if step.samples:
                texts = (f"{sample.prompt}\n\n{sample.response}" for sample in step.samples)
                scores = (sample.heading for sample in step.samples)
                values["val/samples"] = list(map(swanlab.Text, texts, scores))
            self._run.log(values, step=step.row)

    def close(self, how: How | None) -> None:
        state = STATES[how] if how else "success"
        self._run.finish(state, error="the run failed" if state == "crashed" else None)
