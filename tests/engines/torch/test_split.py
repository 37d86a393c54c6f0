"""A step comes to the same however it is split, recomputed or rounded; dropout is on only where it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jobs
import pytest
import torch
from jobs import COMPARED
from transformers import AutoConfig, AutoModelForCausalLM

from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.engines.torch.model.network import CausalLM
from launcher.engines.torch.train.batching import Limits
from launcher.spec.algorithm import Algorithm
from launcher.text.tokenizer import character_tokenizer

KINDS = ("sft", "dpo", "ppo", "grpo", "dr_grpo", "gspo", "dapo", "gspo_selfplay")
SHORT = ("dpo", "ppo", "gspo_selfplay")  # of pairs, with a critic, and of both kinds of rows
Metrics = list[dict[str, float]]


def check_equal(found: Metrics, expected: Metrics, near: float) -> None:
    """Where something is learnt by a rule with an edge (a share of clipped tokens), float32 may fall on its other
    side: only losses and norms are compared then. The largest ratio has all the rounding of one token or answer.
    """
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        names = [name for name in ours if near < 1e-8 or "clipfrac" not in name]
        for name in names:
            within = near * 10 if "ratio_max" in name else near
            assert ours[name] == pytest.approx(theirs[name], within, within), name


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.long) for kind in KINDS]
)
def test_micro_batches_do_not_change_the_result(kind: str) -> None:
    """By rows and by tokens; groups that must stay whole are larger than the smallest limits. And weights do move."""
    limits = (Limits(3), Limits(1, 11))[KINDS.index(kind) % 2]
    before = jobs.weights(jobs.policy_for(kind, "float64", limits))
    found, expected = (jobs.trained(kind, "float64", given, 2) for given in (limits, Limits(2)))
    assert (torch.tensor(found["weights"]) != before).double().mean() > 0.5
    check_equal(found["metrics"], expected["metrics"], 1e-12)
    assert found["weights"] == pytest.approx(expected["weights"], rel=0, abs=1e-12)


def test_micro_batches_do_not_change_the_result_in_float32_either() -> None:
    """Here prompts are shared, and how they are depends on the split."""
    one, other = (jobs.trained("grpo", "float32", limits, 2) for limits in (Limits(2), Limits(1, 30)))
    check_equal(one["metrics"], other["metrics"], 1e-5)
    assert one["weights"] == pytest.approx(other["weights"], rel=0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
@pytest.mark.parametrize("name", COMPARED)
def test_processes_do_not_change_the_result(
    way: str, name: str, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    (single,), found = together(1), together(2)
    mine = [output[name + way] for output in found]
    assert mine[1] == mine[0]  # each process holds the same weights, to the last bit
    near = 1e-6 if "float32" in name else 1e-12
    check_equal(mine[0]["metrics"], single[name]["metrics"], near)
    assert mine[0]["weights"] == pytest.approx(single[name]["weights"], rel=0, abs=near)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_an_expert_that_a_process_did_not_use_takes_the_gradient_of_the_others(
    size: int, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    assert [found["experts"] for found in together(size)] == [[15.0, 1.0, None]] * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_finds_the_same(kind: str) -> None:
    found = jobs.trained(kind, "float64", Limits(2), 3, device=torch.device("cuda"))
    assert found["weights"] == pytest.approx(jobs.trained(kind, "float64", Limits(2), 3)["weights"], abs=1e-9)


@pytest.mark.parametrize(("kind", "rank"), [("ppo", 0), ("grpo", 4)])
def test_computing_layers_a_second_time_changes_nothing(kind: str, rank: int) -> None:
    found = [
        jobs.trained(kind, "float64", Limits(5), 1, lora_rank=rank, enable_gradient_checkpointing=again)
        for again in (False, True)
    ]
    assert found[0] == found[1]


def test_mixed_precision_is_bfloat16_over_float32() -> None:
    """Losses within what 8 bits of a number allow, and weights, gradients and optimizer as they were."""
    found = []
    for mixed in (False, True):
        policy = jobs.policy_for("ppo", "float32", Limits(5))
        policy.model.mixed = mixed
        metrics, _ = jobs.train_until(policy, 1, {}, updates=1)
        found.append(metrics[0])
        assert {weight.dtype for weight in policy.model.parameters()} == {torch.float32}
        assert {x.dtype for held in policy.actor.optimizer.state.values() for x in held.values()} == {torch.float32}
    plain, coarse = found
    assert plain != coarse  # it does compute in bfloat16
    for name in ("actor/entropy", "actor/grad_norm", "critic/vf_loss"):
        assert coarse[name] == pytest.approx(plain[name], rel=0.05)


ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., "
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},  # three kinds of 0.1
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


def first(algorithm: Algorithm, model: CausalLM, **more: Any) -> dict[str, float]:
    """What the first update reports."""
    reference = deepcopy(model) if "reference" in algorithm.needs else None
    policy = jobs.policy_of(model, algorithm, reference=reference, **more)
    return dict(policy.update(jobs.prepared(policy), 1).metrics)


@pytest.mark.parametrize(("family", "checkpointing"), [("gpt2", False), ("falcon", True)])
def test_dropout_is_on_only_where_it_is_asked_for(family: str, checkpointing: bool) -> None:
    """Without it losses begin where policy and reference are equal."""
    for dropout in (False, True):
        pairs = first(DPO(), model_of(family, checkpointing=checkpointing), dropout=dropout)
        assert (abs(pairs["actor/dpo_loss"] - math.log(2)) > 1e-6) == dropout
    sampled = first(GRPO(), model_of(family, checkpointing=checkpointing))
    assert sampled["actor/pg_clipfrac"] == 0 and sampled["actor/ppo_kl"] == pytest.approx(0, abs=1e-14)
