"""The tensors of a checkpoint: collected from all processes, and laid out on as many as there are when it is taken up.

On disk every tensor is whole, so what N processes saved, M take up. Names are those of the model's own weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from launcher.engines.torch.model.load import BASE, VALUE_HEAD
from launcher.engines.torch.model.network import CriticNetwork
from launcher.engines.torch.parallel import world
from launcher.engines.torch.parallel.strategy import distribute_like, full_tensor
from launcher.engines.torch.train.optimizer import TrainedNetwork
from launcher.engines.torch.train.policy import Policy

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class CheckpointTensors:
    """All tensors of a checkpoint, unsharded; empty on processes other than rank 0."""

    policy: Tensors
    base: Tensors  # of adapters on weights that stand nowhere else
    optimizer: Tensors
    critic: Tensors
    value_head: Tensors
    critic_optimizer: Tensors


def gather_tensors(policy: Policy) -> CheckpointTensors:
    """Collective: every process must call it, as tensors may be sharded."""
    model, critic = policy.model, critic_network(policy)
    weights: Tensors = model.module.state_dict(keep_vars=True)
    base: Tensors = {}
    if model.has_adapters:
        from launcher.engines.torch.model import adapters  # noqa: PLC0415  # late: peft takes half a second

        weights, base = (
            adapters.adapter_weights(model.module),
            adapters.base_weights(model.base) if model.keep_base else {},
        )
    return CheckpointTensors(
        policy=_full_tensors(weights),
        base=_full_tensors(base),
        optimizer=_full_tensors(_optimizer_tensors(policy.actor)),
        critic=_full_tensors(critic.module.state_dict(keep_vars=True)) if critic else {},
        value_head=_full_tensors(critic.head.state_dict(keep_vars=True)) if critic else {},
        critic_optimizer=_full_tensors(_optimizer_tensors(policy.critic)) if policy.critic else {},
    )


def write_tensors(policy: Policy, held: CheckpointTensors, folder: Path) -> None:
    """Models in Hugging Face's layout (adapters in peft's), optimizers beside them."""
    model, critic = policy.model, critic_network(policy)
    more = (
        {"save_embedding_layers": False} if model.has_adapters else {}
    )  # peft would ask the hub whether they have changed
    model.module.save_pretrained(str(folder / "policy"), state_dict=dict(held.policy), **more)
    model.tokenizer.save_pretrained(folder / "policy")
    if held.base:
        model.base.save_pretrained(folder / "policy" / BASE, state_dict=dict(held.base))
    (folder / "state").mkdir()
    save_file(dict(held.optimizer), folder / "state" / "optimizer.safetensors")
    if critic:
        critic.module.save_pretrained(folder / "critic", state_dict=dict(held.critic))
        save_file(dict(held.value_head), folder / "critic" / VALUE_HEAD)
        save_file(dict(held.critic_optimizer), folder / "state" / "critic_optimizer.safetensors")


def load_optimizers(policy: Policy, folder: Path) -> None:
    """Put back the optimizers' state; the weights come with the models."""
    _load_optimizer(policy.actor, folder / "state" / "optimizer.safetensors")
    if policy.critic:
        _load_optimizer(policy.critic, folder / "state" / "critic_optimizer.safetensors")


def critic_network(policy: Policy) -> CriticNetwork | None:
    if policy.critic is None:
        return None
    assert isinstance(policy.critic.network, CriticNetwork)
    return policy.critic.network


def _full_tensors(tensors: Tensors) -> Tensors:
    """Each tensor from all processes, in CPU memory of rank 0. What is one tensor under two names stays one."""
    found: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for name, value in tensors.items():
        if id(value) not in seen:
            whole = full_tensor(value.detach())
            seen[id(value)] = whole.to("cpu").contiguous() if world.RANK == 0 else whole.new_empty(0)
        found[name] = seen[id(value)]
    return found if world.RANK == 0 else {}


def _names(trained: TrainedNetwork) -> dict[str, nn.Parameter]:
    return {name.removeprefix("module."): weight for name, weight in trained.network.named_parameters()}


def _optimizer_tensors(trained: TrainedNetwork) -> Tensors:
    """`exp_avg.<weight>`, `exp_avg_sq.<weight>`, `step.<weight>`."""
    state = trained.optimizer.state
    return {
        f"{key}.{name}": value
        for name, weight in _names(trained).items()
        if weight in state
        for key, value in state[weight].items()
    }


def _load_optimizer(trained: TrainedNetwork, file: Path) -> None:
    weights = _names(trained)
    for full, value in load_file(file).items():
        key, _, name = full.partition(".")
        trained.optimizer.state[weights[name]][key] = distribute_like(value, weights[name])
