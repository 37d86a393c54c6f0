"""Writes and restores this engine's checkpoints, without pickle.

On disk every tensor is whole, so what N processes saved, M can load. Names are those of the model's own weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from launcher.core import checkpoints
from launcher.core.events import writable
from launcher.core.redaction import redact
from launcher.engines.torch.model.load import VALUE_HEAD
from launcher.engines.torch.model.network import CriticNetwork
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import distribute_like, full_tensor
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy
from launcher.spec.checkpoint_format import BASE, POLICY


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


START = "start.safetensors"  # elements of the weights that the run began with
_DISK_FULL = re.compile(r"(Errno|os error) (28|122)\b")  # ENOSPC, EDQUOT; safetensors reports them in text only


class Saver:
    """Writes checkpoints on rank 0; other ranks send their shards and wait."""

    def __init__(self, root: Path, policy: Policy, keep: int, best: int = 1, metric: str | None = None) -> None:
        self.root, self.policy, self.keep, self.best, self.metric = root, policy, keep, best, metric

    def save(self, position: TrainingPosition) -> SaveResult:
        """Write one checkpoint. On failure nothing of it remains and the newest earlier one stays as it is."""
        tensors = gather_tensors(self.policy)
        result = self._save(position, tensors) if world.RANK == 0 else SaveResult(True)
        world.barrier()
        return result

    def _save(self, position: TrainingPosition, tensors: Mapping[str, Tensors]) -> SaveResult:
        name = checkpoints.name_of(position.step)
        if not (error := self._try_write(position, tensors)):
            return SaveResult(True, self._remove_old(name))
        if not _DISK_FULL.search(error):
            return SaveResult(False, f"{name} not written: {error}")
        try:  # a newer checkpoint is worth more than an old one that would go soon anyway, but not more than the best
            removed = checkpoints.retain(self.root, 0, min(self.best, 1), self.metric)
        except OSError as retain_error:
            return SaveResult(False, f"{name} not written: {error}; and no room could be made: {retain_error}")
        if not removed:
            return SaveResult(False, f"{name} not written: {error}")
        names = ", ".join(path.name for path in removed)
        if error_again := self._try_write(position, tensors):
            return SaveResult(False, f"{name} not written: {error_again}; removing {names} made too little room")
        return SaveResult(True, f"{name} written only after removing {names}: {error}")

    def _try_write(self, position: TrainingPosition, tensors: Mapping[str, Tensors]) -> str:
        """Write the checkpoint; returns the reason where that failed, else ""."""
        try:
            checkpoints.write(self.root, position.step, lambda folder: self._write_files(folder, position, tensors))
        except (OSError, SafetensorError) as error:
            return " ".join(str(error).split())
        return ""

    def _remove_old(self, name: str) -> str:
        try:
            checkpoints.retain(self.root, self.keep, self.best, self.metric, self.root / name)
        except OSError as error:
            return f"{name} written, but older ones could not be removed: {error}"
        return ""

    def _write_files(self, folder: Path, position: TrainingPosition, tensors: Mapping[str, Tensors]) -> None:
        write_tensors(self.policy, tensors, folder)
        (folder / "trainer.json").write_text(redact(json.dumps(writable(asdict(position)), indent=1)) + "\n")


def read_position(folder: Path) -> TrainingPosition:
    node = json.loads((folder / "trainer.json").read_text())
    validated = node.pop("validated")
    metrics = {name: float(x) for name, x in validated["metrics"].items()}
    return TrainingPosition(**node, validated=LastValidation(validated["step"], metrics))


# ---- tensors

Tensors = Mapping[str, Tensor]


def gather_tensors(policy: Policy) -> Mapping[str, Tensors]:
    """The unsharded tensors of a checkpoint, by part; empty on processes other than rank 0. Collective: every process
    must call it. The part `base` has the weights under adapters that are stored nowhere else."""
    model, critic = policy.model, critic_network(policy)
    weights: Tensors = model.module.state_dict(keep_vars=True)
    base: Tensors = {}
    if model.has_adapters:
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

        weights = adapters.adapter_weights(model.module)
        base = adapters.base_weights(model.base) if model.keep_base else {}
    parts = {"policy": weights, "base": base, "optimizer": _optimizer_tensors(policy.actor)}
    if policy.critic and critic:
        parts["critic"], parts["value_head"] = (x.state_dict(keep_vars=True) for x in (critic.module, critic.head))
        parts["critic_optimizer"] = _optimizer_tensors(policy.critic)
    return {name: _full_tensors(part) for name, part in parts.items()}


def write_tensors(policy: Policy, tensors: Mapping[str, Tensors], folder: Path) -> None:
    """Models in Hugging Face's layout (adapters in peft's), optimizers beside them."""
    model, critic = policy.model, critic_network(policy)
    more = {"save_embedding_layers": False} if model.has_adapters else {}  # else peft asks the hub if they have changed
    target = folder / POLICY
    model.module.save_pretrained(str(target), state_dict=dict(tensors["policy"]), **more)
    model.write_texts(target)
    if tensors["base"]:
        model.base.save_pretrained(target / BASE, state_dict=dict(tensors["base"]))
    (folder / "state").mkdir()
    save_file(dict(tensors["optimizer"]), folder / "state" / "optimizer.safetensors")
    if policy.actor.start:
        save_file(dict(policy.actor.start), folder / "state" / START)
    if critic:
        critic.module.save_pretrained(folder / "critic", state_dict=dict(tensors["critic"]))
        save_file(dict(tensors["value_head"]), folder / "critic" / VALUE_HEAD)
        save_file(dict(tensors["critic_optimizer"]), folder / "state" / "critic_optimizer.safetensors")


def load_optimizers(policy: Policy, folder: Path) -> None:
    """Restore the optimizers' state and the sample of the initial weights; weights are loaded with the models."""
    _load_optimizer(policy.actor, folder / "state" / "optimizer.safetensors")
    start = folder / "state" / START
    policy.actor.start = load_file(start) if start.exists() else None  # older checkpoints have none
    if policy.critic:
        _load_optimizer(policy.critic, folder / "state" / "critic_optimizer.safetensors")


def critic_network(policy: Policy) -> CriticNetwork | None:
    if policy.critic is None:
        return None
    assert isinstance(policy.critic.network, CriticNetwork)
    return policy.critic.network


def _full_tensors(tensors: Tensors) -> Tensors:
    """Each tensor from all processes, in CPU memory of rank 0. A tensor with two names stays one tensor."""
    whole: dict[str, Tensor] = {}
    by_id: dict[int, Tensor] = {}
    for name, value in tensors.items():
        if id(value) not in by_id:
            full = full_tensor(value.detach())
            by_id[id(value)] = full.to("cpu").contiguous() if world.RANK == 0 else full.new_empty(0)
        whole[name] = by_id[id(value)]
    return whole if world.RANK == 0 else {}


def _weights_by_name(trained: TrainedNetwork) -> dict[str, nn.Parameter]:
    return {name.removeprefix("module."): weight for name, weight in trained.network.named_parameters()}


def _optimizer_tensors(trained: TrainedNetwork) -> Tensors:
    """`exp_avg.<weight>`, `exp_avg_sq.<weight>`, `step.<weight>`."""
    state = trained.optimizer.state
    return {
        f"{key}.{name}": value
        for name, weight in _weights_by_name(trained).items()
        if weight in state
        for key, value in state[weight].items()
    }


def _load_optimizer(trained: TrainedNetwork, file: Path) -> None:
    weights = _weights_by_name(trained)
    for full_name, value in load_file(file).items():
        key, _, name = full_name.partition(".")
        trained.optimizer.state[weights[name]][key] = distribute_like(value, weights[name])
        if key == "step":
            trained.network.version = max(trained.network.version, int(value))
