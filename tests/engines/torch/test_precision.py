"""Less memory, and number formats: what may not change a number, and what may change it only so far."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.train.batching import Limits
from launcher.models.scratch import Scratch

CPU = torch.device("cpu")
KINDS = ("sft", "ppo", "grpo", "gspo_selfplay")


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_computing_layers_a_second_time_changes_nothing(kind: str, rank: int, jobs: ModuleType) -> None:
    found = [
        jobs.trained(kind, "float64", Limits(5), 3, lora_rank=rank, enable_gradient_checkpointing=again)
        for again in (False, True)
    ]
    assert found[0] == found[1]


def test_layers_are_computed_a_second_time_where_that_is_asked_for(jobs: ModuleType) -> None:
    calls = []
    for again in (False, True):
        policy = jobs.policy_for("sft", "float64", Limits(100), enable_gradient_checkpointing=again)
        (layer,) = policy.model.base.get_decoder().layers
        counted: list[int] = []
        layer.self_attn.register_forward_hook(lambda *_, counted=counted: counted.append(1))
        jobs.train_until(policy, 1, {}, updates=1)
        calls.append(len(counted))
    assert calls == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_is_bfloat16_over_float32(kind: str, jobs: ModuleType) -> None:
    """Losses within what 8 bits of a number allow, and weights, gradients and optimizer as they were."""
    found = []
    for mixed in (False, True):
        policy = jobs.policy_for(kind, "float32", Limits(5))
        policy.model.mixed = mixed
        metrics, _ = jobs.train_until(policy, 1, {}, updates=1)
        found.append(metrics[0])
        assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
        assert {x.dtype for held in policy.actor.optimizer.state.values() for x in held.values()} == {torch.float32}
    plain, coarse = found
    assert plain != coarse  # it does compute in bfloat16
    for name in ("train/loss", "actor/entropy", f"{policy.prefix}/grad_norm", "critic/vf_loss"):
        if name in plain:
            assert coarse[name] == pytest.approx(plain[name], rel=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_are_bfloat16_only_while_it_computes(dtype: str, jobs: ModuleType) -> None:
    model = load_model(
        Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype=dtype), 0, CPU, mixed=True
    )
    packed = model.pack(jobs.rollouts_of(model, 1))
    with torch.no_grad(), model.autocast():
        assert model.hidden(packed).dtype in (torch.float32, torch.bfloat16)
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert model(packed).logp.dtype == torch.float32
