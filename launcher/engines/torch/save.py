"""What a checkpoint of this engine holds, and how training takes it up again. No pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from launcher import checkpoints
from launcher.engines.torch import world
from launcher.engines.torch.policy import Policy


@dataclass(frozen=True)
class Position:
    """Where training stands. Rows and random streams are functions of (seed, step), so this is all of them."""

    step: int
    seed: int
    epoch: int
    rows: int
    """Rows of the training data: a step takes other rows when this changes."""


class Saver:
    """Writes checkpoints from rank 0; the others wait."""

    def __init__(self, root: Path, policy: Policy, keep: int) -> None:
        self.root, self.policy, self.keep = root, policy, keep

    def save(self, position: Position) -> str:
        """Why it could not be written; empty when it was. Earlier checkpoints stay as they are on failure."""
        why = ""
        if world.RANK == 0:
            try:
                checkpoints.write(self.root, position.step, lambda folder: self._fill(folder, position))
                checkpoints.keep_newest(self.root, self.keep)
            except (OSError, SafetensorError) as error:
                why = f"{checkpoints.name_of(position.step)} not written: {' '.join(str(error).split())}"
        world.wait()
        return why

    def _fill(self, folder: Path, position: Position) -> None:
        self.policy.model.module.save_pretrained(folder / "policy")
        self.policy.model.tokenizer.save_pretrained(folder / "policy")
        (folder / "state").mkdir()
        save_file(_optimizer_tensors(self.policy), folder / "state" / "optimizer.safetensors")
        (folder / "trainer.json").write_text(json.dumps(asdict(position), indent=1) + "\n")


def _optimizer_tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """`exp_avg.<weight>`, `exp_avg_sq.<weight>`, `step.<weight>`."""
    state = policy.optimizer.state
    return {
        f"{key}.{name}": value.contiguous()
        for name, weight in policy.model.module.named_parameters()
        for key, value in state[weight].items()
    }


def load_optimizer(policy: Policy, folder: Path) -> None:
    """Put back the optimizer's state; the weights come with the model."""
    tensors = load_file(folder / "state" / "optimizer.safetensors")
    weights = dict(policy.model.module.named_parameters())
    for full, value in tensors.items():
        key, _, name = full.partition(".")
        on = "cpu" if key == "step" and policy.model.device.type == "cpu" else policy.model.device
        policy.optimizer.state[weights[name]][key] = value.to(on)


def position_of(folder: Path) -> Position:
    return Position(**json.loads((folder / "trainer.json").read_text()))
