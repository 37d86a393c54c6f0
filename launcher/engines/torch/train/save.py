"""What a checkpoint of this engine holds, and how training takes it up again. No pickle."""

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
class Validated:
    """What the latest validation measured, and after which step; None before there was one."""

    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Position:
    """Where training stands. Rows and random streams are functions of (seed, step), so this is all of them."""

    step: int
    seed: int
    epoch: int
    rows: int
    """Rows of the training data: a step takes other rows when this changes."""
    told: Mapping[str, float] = field(default_factory=dict)
    """What the algorithm told last, which it is given again."""
    validated: Validated = field(default_factory=Validated)
    """How good the weights are, where that was measured after this very step."""


@dataclass(frozen=True)
class Written:
    """Whether a checkpoint is complete on disk, and what a person should know of it."""

    done: bool
    told: str = ""


_FULL = re.compile(r"(Errno|os error) (28|122)\b")  # ENOSPC, EDQUOT; safetensors tells them in text only


class Saver:
    """Writes checkpoints from rank 0; the others hand over their parts, and wait."""

    def __init__(self, root: Path, policy: Policy, keep: int, best: int = 1, metric: str | None = None) -> None:
        self.root, self.policy, self.keep, self.best, self.metric = root, policy, keep, best, metric

    def save(self, position: Position) -> Written:
        """Write one checkpoint. On failure nothing of it remains and the newest earlier one stays as it is."""
        held = state.gathered(self.policy)
        written = self._save(position, held) if world.RANK == 0 else Written(True)
        world.wait()
        return written

    def _save(self, position: Position, held: state.Held) -> Written:
        name = checkpoints.name_of(position.step)
        if not (error := self._try(position, held)):
            return Written(True, self._remove_old(name))
        if not _FULL.search(error):
            return Written(False, f"{name} not written: {error}")
        try:  # a newer checkpoint is worth more than an old one that would go soon anyway, but not more than the best
            gone = self._retain(0, min(self.best, 1))
        except OSError as refused:
            return Written(False, f"{name} not written: {error}; and no room could be made: {refused}")
        if not gone:
            return Written(False, f"{name} not written: {error}")
        names = ", ".join(path.name for path in gone)
        if error_again := self._try(position, held):
            return Written(False, f"{name} not written: {error_again}; removing {names} made too little room")
        return Written(True, f"{name} written only after removing {names}: {error}")

    def _retain(self, last: int, best: int, sealed: Path | None = None) -> list[Path]:
        def grade(folder: Path) -> float | None:
            return metrics.grade(checkpoints.validated(folder), self.metric)

        return checkpoints.retain(self.root, last, best, grade, sealed)

    def _try(self, position: Position, held: state.Held) -> str:
        """Why it could not be written; empty when it was."""
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

    def _fill(self, folder: Path, position: Position, held: state.Held) -> None:
        state.write(self.policy, held, folder)
        (folder / "trainer.json").write_text(redact(json.dumps(writable(asdict(position)), indent=1)) + "\n")


def position_of(folder: Path) -> Position:
    node = json.loads((folder / "trainer.json").read_text())
    seen = node.pop("validated", {"step": None, "metrics": {}})  # a checkpoint of before may not have it
    return Position(**node, validated=Validated(seen["step"], {name: float(x) for name, x in seen["metrics"].items()}))
