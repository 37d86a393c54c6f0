"""Writes and restores this engine's checkpoints, without pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from launcher.core import checkpoints, metrics
from launcher.core.events import writable
from launcher.core.redaction import redact
from launcher.engines.torch.parallel import world
from launcher.engines.torch.train import state
from launcher.engines.torch.train.policy import Policy


@dataclass(frozen=True)
class LastValidation:
    """Metrics of the latest validation, and its step; None before the first."""

    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingPosition:
    """Progress of the training. Rows and random streams are functions of (seed, step), so this is complete."""

    step: int
    seed: int
    epoch: int
    rows: int
    """Rows of the training data: a step takes other rows when this changes."""
    algorithm_state: Mapping[str, float] = field(default_factory=dict)
    """The state last returned by `Algorithm.prepare`."""
    validated: LastValidation = field(default_factory=LastValidation)
    """Metrics of a validation after this very step."""


@dataclass(frozen=True)
class SaveResult:
    """Whether a checkpoint is complete on disk, and messages for the user."""

    done: bool
    message: str = ""


_FULL = re.compile(r"(Errno|os error) (28|122)\b")  # ENOSPC, EDQUOT; safetensors tells them in text only


class Saver:
    """Writes checkpoints on rank 0; other ranks send their shards and wait."""

    def __init__(self, root: Path, policy: Policy, keep: int, best: int = 1, metric: str | None = None) -> None:
        self.root, self.policy, self.keep, self.best, self.metric = root, policy, keep, best, metric

    def save(self, position: TrainingPosition) -> SaveResult:
        """Write one checkpoint. On failure nothing of it remains and the newest earlier one stays as it is."""
        held = state.gather_tensors(self.policy)
        written = self._save(position, held) if world.RANK == 0 else SaveResult(True)
        world.barrier()
        return written

    def _save(self, position: TrainingPosition, held: state.CheckpointTensors) -> SaveResult:
        name = checkpoints.name_of(position.step)
        if not (error := self._try(position, held)):
            return SaveResult(True, self._remove_old(name))
        if not _FULL.search(error):
            return SaveResult(False, f"{name} not written: {error}")
        try:  # a newer checkpoint is worth more than an old one that would go soon anyway, but not more than the best
            gone = self._retain(0, min(self.best, 1))
        except OSError as refused:
            return SaveResult(False, f"{name} not written: {error}; and no room could be made: {refused}")
        if not gone:
            return SaveResult(False, f"{name} not written: {error}")
        names = ", ".join(path.name for path in gone)
        if error_again := self._try(position, held):
            return SaveResult(False, f"{name} not written: {error_again}; removing {names} made too little room")
        return SaveResult(True, f"{name} written only after removing {names}: {error}")

    def _retain(self, last: int, best: int, sealed: Path | None = None) -> list[Path]:
        def grade(folder: Path) -> float | None:
            return metrics.grade(checkpoints.validated(folder), self.metric)

        return checkpoints.retain(self.root, last, best, grade, sealed)

    def _try(self, position: TrainingPosition, held: state.CheckpointTensors) -> str:
        """Write it; returns the reason if that failed, else ""."""
        try:
            checkpoints.write(self.root, position.step, lambda folder: self._fill(folder, position, held))
        except (OSError, SafetensorError) as error:
            return " ".join(str(error).split())
        return ""

    def _remove_old(self, name: str) -> str:
        try:
            self._retain(self.keep, self.best, self.root / name)
        except OSError as error:
            return f"{name} written, but older ones could not be removed: {error}"
        return ""

    def _fill(self, folder: Path, position: TrainingPosition, held: state.CheckpointTensors) -> None:
        state.write_tensors(self.policy, held, folder)
        (folder / "trainer.json").write_text(redact(json.dumps(writable(asdict(position)), indent=1)) + "\n")


def read_position(folder: Path) -> TrainingPosition:
    node = json.loads((folder / "trainer.json").read_text())
    seen = node.pop(
        "validated", {"step": None, "metrics": {}}
    )  # absent before the first validation and in older checkpoints
    return TrainingPosition(
        **node, validated=LastValidation(seen["step"], {name: float(x) for name, x in seen["metrics"].items()})
    )
