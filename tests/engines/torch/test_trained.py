"""The optimizer's settings, and what becomes of a step in which something is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.algorithms.sft import SFT
from launcher.engines.torch.model.network import CausalLM
from launcher.spec.run import Optim

Tiny = Callable[..., CausalLM]


# ---- the optimizer's settings


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, {1: 1.0, 5: 1.0, 10: 1.0}),  # constant by default
        ({"lr_warmup_steps": 4}, {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 5: 1.0, 10: 1.0}),
        ({"lr_warmup_steps": 20}, {1: 0.05, 10: 0.5}),  # a run shorter than its warm-up
        ({"lr_scheduler_type": "linear"}, {1: 0.9, 5: 0.5, 9: 0.1, 10: 0.0}),
        ({"lr_scheduler_type": "linear", "min_lr_ratio": 0.2}, {5: 0.6, 10: 0.2}),  # 0.2 + 0.8 x 0.5
        ({"lr_scheduler_type": "linear", "lr_warmup_steps": 2}, {1: 0.5, 2: 1.0, 3: 7 / 8, 6: 0.5, 10: 0.0}),
        ({"lr_scheduler_type": "cosine"}, {5: 0.5, 10: 0.0}),  # (1 + cos(pi / 2)) / 2
        # after 2 of 8 steps: (1 + cos(pi / 4)) / 2 = 0.8536
        ({"lr_scheduler_type": "cosine", "lr_warmup_steps": 2}, {2: 1.0, 4: 0.5 + math.sqrt(0.5) / 2, 6: 0.5, 10: 0}),
        ({"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}, {5: 0.55, 10: 0.1}),  # 0.1 + 0.9 x 0.5
        ({"lr_scheduler_type": "cosine", "lr_warmup_steps": 10}, {9: 0.9, 10: 1.0}),  # nothing left to fall
    ],
)
def test_learning_rate(values: dict[str, Any], rates: dict[int, float], tiny: Tiny, jobs: ModuleType) -> None:
    policy = jobs.policy_of(tiny(), optim=Optim(lr=0.003, **values))
    found = {step: policy.actor.learning_rate(step) for step in rates}
    assert found == pytest.approx({step: 0.003 * rate for step, rate in rates.items()}, abs=1e-18)


@pytest.mark.parametrize(("limit", "shortened"), [(0.01, True), (1e9, False)])
def test_the_gradient_is_shortened_and_its_length_before_that_reported(
    limit: float, shortened: bool, tiny: Tiny, jobs: ModuleType
) -> None:
    model = tiny()
    policy = jobs.policy_of(model, SFT(), optim=Optim(clip_grad=limit))
    given = []

    def note(*_: Any) -> None:
        grads = [weight.grad.flatten() for weight in model.module.parameters() if weight.grad is not None]
        given.append(torch.cat(grads).norm().item())

    policy.actor.optimizer.register_step_pre_hook(note)
    reported = policy.update(jobs.rollouts_of(model, 1), 1).metrics["train/grad_norm"]
    assert reported > 0.1
    assert given == [pytest.approx(limit if shortened else reported, rel=1e-4)]  # torch adds 1e-6 to the length
    assert all(weight.grad is None for weight in model.module.parameters())  # nothing stays for the next step


def test_frozen_weights_stay(tiny: Tiny, jobs: ModuleType) -> None:
    model = tiny()
    embedding = model.module.get_input_embeddings().weight.requires_grad_(False)
    policy = jobs.policy_of(model, SFT(), optim=Optim(lr=1e-2, weight_decay=0.5))
    before, all_before = embedding.clone(), jobs.weights(policy)
    policy.update(jobs.rollouts_of(model, 1), 1)
    assert torch.equal(embedding, before)
    assert not torch.equal(jobs.weights(policy), all_before)
