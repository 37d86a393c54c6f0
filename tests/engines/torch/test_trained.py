"""The optimizer's settings, and what becomes of a step in which something is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, get_scheduler

from launcher.algorithms.sft import SFT
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.train.schedule import learning_rates
from launcher.spec.run import Optim
from launcher.text.tokenizer import character_tokenizer

Tiny = Callable[..., CausalLM]


# ---- the optimizer's settings


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, {1: 1.0, 5: 1.0, 10: 1.0}),  # constant by default
        ({"lr_warmup_steps": 4}, {1: 0.0, 2: 0.25, 3: 0.5, 4: 0.75, 5: 1.0, 10: 1.0}),
        ({"lr_warmup_steps": 20}, {1: 0.0, 2: 0.05, 10: 0.45}),  # a run shorter than its warm-up
        ({"lr_scheduler_type": "linear"}, {1: 1.0, 6: 0.5, 10: 0.1}),
        ({"lr_scheduler_type": "linear", "min_lr_ratio": 0.2}, {1: 1.0, 6: 0.6, 10: 0.28}),  # 0.2 + 0.8 x 0.1
        ({"lr_scheduler_type": "linear", "min_lr_ratio": 1.0}, {1: 1.0, 10: 1.0}),
        ({"lr_scheduler_type": "linear", "lr_warmup_steps": 2}, {1: 0.0, 2: 0.5, 3: 1.0, 4: 7 / 8, 10: 1 / 8}),
        # after 2 of 8 steps: (1 + cos(pi / 4)) / 2 = 0.8536
        ({"lr_scheduler_type": "cosine", "lr_warmup_steps": 2}, {3: 1.0, 5: 0.5 + math.sqrt(0.5) / 2, 7: 0.5}),
        ({"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}, {6: 0.55}),  # 0.1 + 0.9 x 0.5
        ({"lr_scheduler_type": "polynomial", "lr_power": 2.0, "min_lr_ratio": 0.2}, {1: 1.0, 6: 0.4, 10: 0.208}),
        ({"lr_scheduler_type": "inverse_sqrt", "lr_warmup_steps": 4}, {5: 1.0, 10: 2 / 3}),  # sqrt(4 / 9)
        ({"lr_scheduler_type": "warmup_stable_decay", "lr_decay_steps": 4}, {1: 1.0, 7: 1.0, 9: 0.5}),
    ],
)
def test_learning_rate(values: dict[str, Any], rates: dict[int, float]) -> None:
    of = learning_rates(Optim(lr=0.003, **values), 10)
    assert {step: of(step) for step in rates} == pytest.approx({k: 0.003 * x for k, x in rates.items()}, abs=1e-15)


SCHEDULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # transformers' name, its settings, ours
    "constant": ("constant_with_warmup", {}, {}),
    "linear": ("linear", {}, {}),
    "cosine": ("cosine", {}, {}),
    "cosine to a tenth": ("cosine_with_min_lr", {"min_lr_rate": 0.1}, {"min_lr_ratio": 0.1}),
    "polynomial": ("polynomial", {}, {}),
    "polynomial to a fiftieth": ("polynomial", {"power": 3.0, "lr_end": 6e-5}, {"lr_power": 3.0, "min_lr_ratio": 0.02}),
    "inverse_sqrt": ("inverse_sqrt", {}, {}),
    "warmup_stable_decay": ("warmup_stable_decay", {"num_decay_steps": 1}, {"lr_decay_steps": 1}),
}


@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
@pytest.mark.parametrize("warm", [0, 1, 7])
@pytest.mark.parametrize("kind", SCHEDULES, ids=str)
def test_rates_are_those_that_transformers_sets(kind: str, warm: int, steps: int) -> None:
    """Of a scheduler that is really stepped."""
    name, theirs, ours = SCHEDULES[kind]
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=0.003)
    scheduler: Any = get_scheduler(name, optimizer, warm, steps, theirs)
    of = learning_rates(Optim(lr=0.003, lr_warmup_steps=warm, lr_scheduler_type=kind.split()[0], **ours), steps)
    for step in range(1, steps + 1):
        assert of(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12, abs=1e-18)
        optimizer.step()
        if step < steps:  # it need not be defined behind the last
            scheduler.step()


@pytest.mark.parametrize(
    "family", ["qwen3", "gpt2", "gpt_oss"]
)  # gpt-oss has biases of two dimensions, and sinks of one
def test_weight_decay_spares_what_transformers_spares(family: str, jobs: ModuleType) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, vocab_size=48, **sizes, intermediate_size=16, head_dim=8, num_local_experts=4)
    model = CausalLM(AutoModelForCausalLM.from_config(config), character_tokenizer("abc"))
    decayed = set(Trainer.get_decay_parameter_names(None, model.module))
    for optim in (Optim(), Optim(weight_decay_on="all")):
        groups = jobs.policy_of(model, optim=optim).actor.optimizer.param_groups
        decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
        for name, weight in model.module.named_parameters():
            expected = 0.01 if name in decayed or optim.weight_decay_on == "all" else 0.0
            assert decay[id(weight)] == expected, name


def test_eps_is_that_of_the_settings(tiny: Tiny, jobs: ModuleType) -> None:
    assert jobs.policy_of(tiny(), optim=Optim(adam_eps=1e-5)).actor.optimizer.defaults["eps"] == 1e-5


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
