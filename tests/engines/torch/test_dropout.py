"""Dropout is on in SFT's updates only, unless it is asked for: other losses compare with probabilities without it."""

from __future__ import annotations

import math
from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.train.measure import Clock
from launcher.spec.algorithm import Algorithm
from launcher.text.tokenizer import character_tokenizer

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., "
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},  # three kinds of 0.1
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "dropout": 0.1,
            "word_embed_proj_dim": 32, "attention_dropout": 0.1, "max_position_embeddings": 64},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_dropout": 0.1,
               "attention_dropout": 0.1},  # its layers read the shares in the config
}  # fmt: skip


def model_of(family: str, *, checkpointing: bool = False) -> CausalLM:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=48, **SIZES[family])
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    return CausalLM(module, character_tokenizer(ALPHABET))


def first(algorithm: Algorithm, model: CausalLM, jobs: ModuleType, **more: Any) -> dict[str, float]:
    """What the first update reports."""
    reference = deepcopy(model) if "reference" in algorithm.needs else None
    policy = jobs.policy_of(model, algorithm, reference=reference, **more)
    batch = policy.annotate(jobs.batch_for(algorithm, model, 1), Clock(), on_policy=False)
    return dict(policy.update(algorithm.prepare(batch, {})[0], 1).metrics)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", SIZES)
def test_losses_begin_where_policy_and_reference_are_equal(family: str, checkpointing: bool, jobs: ModuleType) -> None:
    pairs = first(DPO(), model_of(family, checkpointing=checkpointing), jobs)
    assert pairs["actor/dpo_loss"] == pytest.approx(math.log(2), abs=1e-12)
    sampled = first(GRPO(), model_of(family, checkpointing=checkpointing), jobs)
    assert sampled["actor/pg_clipfrac"] == 0 and sampled["actor/ppo_kl"] == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize("family", SIZES)
def test_layers_are_recomputed_without_dropout(family: str, jobs: ModuleType) -> None:
    """The gradient is that of all activations kept, and fewer are kept."""
    norms, kept = [], []
    for checkpointing in (False, True):
        model, bytes_kept = model_of(family, checkpointing=checkpointing), [0]

        def note(x: torch.Tensor, total: list[int] = bytes_kept) -> torch.Tensor:
            total[0] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            norms.append(first(GRPO(), model, jobs)["actor/grad_norm"])
        kept.append(bytes_kept[0])
    assert norms[1] == pytest.approx(norms[0], rel=1e-12)
    assert kept[1] < 0.7 * kept[0]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", SIZES)
def test_dropout_that_is_asked_for(family: str, checkpointing: bool, jobs: ModuleType) -> None:
    found = first(DPO(), model_of(family, checkpointing=checkpointing), jobs, dropout=True)["actor/dpo_loss"]
    assert abs(found - math.log(2)) > 1e-6
