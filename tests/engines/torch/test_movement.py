"""How far weights moved since the run began: by part, from a sample, over restarts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from launcher.engines.torch.train import movement
from launcher.engines.torch.train.movement import SAMPLED, distances, elements, part_of, sample
from launcher.engines.torch.train.save import Saver, TrainingPosition, load_optimizers


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("module.model.embed_tokens.weight", "embedding"),
        ("module.transformer.wte.weight", "embedding"),
        ("module.model.layers.0.self_attn.q_proj.weight", "attention"),
        ("module.model.layers.0.self_attn.q_norm.weight", "norms"),
        ("module.transformer.h.0.ln_1.weight", "norms"),
        ("module.model.layers.0.mlp.experts.gate_up_proj", "mlp"),
        ("module.lm_head.weight", "head"),
        ("module.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", "lora_B"),
        ("module.model.layers.0.conv.weight", "other"),
    ],
)
def test_a_weight_belongs_to_a_part(name: str, part: str) -> None:
    assert part_of(name) == part


@pytest.mark.parametrize("size", [1, 100, SAMPLED, SAMPLED + 1, 1 << 20, 3 * 10**6])
def test_the_elements_are_distinct_and_spread(size: int) -> None:
    found = elements(torch.arange(size))
    assert len(found) == len(found.unique()) == min(size, SAMPLED)
    assert found.double().mean().item() == pytest.approx((size - 1) / 2, rel=0.03)


def test_a_sample_says_how_far_a_large_weight_moved(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16))
    begun = [weight.detach().clone() for weight in policy.actor.weights]
    whole = sample(policy.actor.network)
    monkeypatch.setattr(movement, "SAMPLED", 64)
    policy.actor.start = sample(policy.actor.network)
    assert set(distances(policy.actor).values()) == {0.0}
    for weight in policy.actor.weights:
        weight.data += 0.1 * torch.randn(weight.shape, dtype=torch.float64, generator=torch.manual_seed(0))
    estimated = distances(policy.actor)
    assert sum(len(x) for x in policy.actor.start.values()) < sum(weight.numel() for weight in begun) / 2
    monkeypatch.setattr(movement, "SAMPLED", SAMPLED)
    policy.actor.start = whole
    assert estimated == pytest.approx(distances(policy.actor), rel=0.3)
    assert set(estimated) == {"embedding", "attention", "mlp", "norms", "head"}


@pytest.mark.parametrize("start", [True, False])
def test_a_resumed_run_measures_from_its_beginning(jobs: ModuleType, start: bool, tmp_path: Path) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16))
    policy.actor.start = sample(policy.actor.network) if start else None  # as in an older checkpoint
    jobs.train_until(policy, 1, {})
    before = distances(policy.actor)
    assert bool(before) == start and all(x > 0 for x in before.values())
    Saver(tmp_path, policy, 3).save(TrainingPosition(1, 0, 0, 24))
    policy.actor.start = sample(policy.actor.network)  # of the weights that it goes on with
    load_optimizers(policy, next(tmp_path.iterdir()))
    assert distances(policy.actor) == before


def test_adapters_have_a_norm_from_nothing(jobs: ModuleType) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16), lora_rank=4)
    for name, weight in policy.actor.network.named_parameters():
        if "lora_B" in name:
            weight.data.zero_()
    policy.actor.start = sample(policy.actor.network)
    jobs.train_until(policy, 1, {})
    found, weights = distances(policy.actor), dict(policy.actor.network.named_parameters())
    norm = sum(weight.square().sum().item() for name, weight in weights.items() if "lora_B" in name) ** 0.5
    assert set(found) == {"lora_A", "lora_B"} and found["lora_B"] == pytest.approx(norm) and norm > 0
