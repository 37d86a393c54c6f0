"""Sends a session to W&B through its own package, so WANDB_API_KEY, WANDB_MODE, WANDB_DIR, ... apply as usual."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.logger.spool import SpoolReader, read_row

POLL_S = 0.2
LEVELS = {"failed": "ERROR", "error": "ERROR", "warning": "WARN", "warn": "WARN"}


def _init(arguments: Mapping[str, Any]) -> Any:
    os.environ.pop("WANDB_SERVICE", None)  # the script may have its own W&B process
    wandb = import_module("wandb")  # may be missing, hang, or take seconds
    return wandb.init(**arguments, settings=wandb.Settings(console="off"))


class WandbSink:
    """Sends rows to W&B as the session grows. W&B's `_step` is the step of the script."""

    def __init__(self, reader: SpoolReader, init: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._reader, self._init, self._say = reader, init, say
        self._offset, self._step, self.arrived = 0, 0, 0
        self._how = "finished"
        self.reason, self.complete = "", False

    @property
    def rest(self) -> str:
        """A message: how many rows W&B did not get, and why."""
        rows = sum(1 for _ in self._reader.lines()) - self.arrived
        return f"{rows} rows did not reach W&B: {self.reason or 'it does not answer'}"

    def run(self) -> None:
        run = try_call(partial(_init, self._init))
        if isinstance(run, CallFailure):
            self.reason = run.reason
            return self._say(f"W&B gets nothing: {run.reason}")
        while True:
            writer_gone = self._reader.writer_gone()  # checked before reading, so no row is missed
            lines = self._reader.read(self._offset)
            for line in lines:
                result = try_call(partial(self._send_row, run, read_row(line)))
                if isinstance(result, CallFailure) and result.reason != self.reason:
                    self.reason = result.reason
                    self._say(f"W&B refused a row: {result.reason}")
                self._offset, self.arrived = self._offset + len(line), self.arrived + 1
            if writer_gone and not lines:
                break
            if not lines:
                time.sleep(POLL_S)
        result = try_call(partial(run.finish, exit_code=int(self._how == "failed")))
        self.complete = not isinstance(result, CallFailure)
        self.reason = result.reason if isinstance(result, CallFailure) else ""
        return None

    def _send_row(self, run: Any, row: Mapping[str, Any]) -> None:
        match row.get("kind"):
            case "metrics":
                self._step = int(row["step"])
                numbers = {name: _parse_number(value) for name, value in row["metrics"].items()}
                numbers |= {f"eval/{name}": _parse_number(value) for name, value in row.get("held_out", {}).items()}
                numbers |= {"epoch": row["epoch"]} if "epoch" in row else {}
                run.log(numbers, step=self._step)
            case "gpu":
                names = ("utilization", "memory_used", "memory_total", "temperature")
                usage = {f"gpu/{row['gpu_index']}/{name}": row[name] for name in names if row[name] is not None}
                run.log(usage, step=self._step)
            case "checkpoint":
                run.log({"checkpoint/step": row["step"]}, step=self._step)
                run.summary["checkpoint/path"] = row["path"]
            case "status":
                level = LEVELS.get(row["status"].lower(), "INFO")
                run.alert(title=row["status"] or "status", text=row["message"] or row["status"], level=level)
            case "config":
                run.config.update(row["config"], allow_val_change=True)
            case "summary":
                run.summary.update(row["summary"])
            case "finish":
                self._how = row["how"]


def _parse_number(value: Any) -> Any:
    """NaN and the infinities, which rows hold as texts, as numbers."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
