"""Adapters: only they train, the weights under them are the reference, and peft reads what is saved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
import torch
from jobs import saved
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.clock import Clock
from launcher.engines.torch.train.policy import Policy
from launcher.models.pretrained import Pretrained
from launcher.models.scratch import Scratch

CPU = torch.device("cpu")
TINY = Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype="float64", lora_rank=4)


def held(policy: Policy, *, adapters: bool = True) -> dict[str, torch.Tensor]:
    """Copies of the adapters, or of the weights under them."""
    named = policy.model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if ("lora_" in name) is adapters}


@pytest.mark.parametrize("kind", ["dpo", "ppo"])
def test_every_algorithm_trains_adapters_and_nothing_else(kind: str) -> None:
    policy: Policy = jobs.policy_for(kind, "float64", Limits(5), lora_rank=4)
    before, weights = held(policy), held(policy, adapters=False)
    assert len(before) == 2 * 7  # two matrices beside each of a layer's seven
    metrics, _ = jobs.train_until(policy, 1, {})
    assert all(update[f"{policy.prefix}/skipped_nonfinite"] == 0.0 for update in metrics)
    after = held(policy)
    assert all(not torch.equal(after[name], value) for name, value in before.items())
    assert all(torch.equal(held(policy, adapters=False)[name], value) for name, value in weights.items())
    assert {id(weight) for weight in policy.actor.weights} == {
        id(weight) for name, weight in policy.model.named_parameters() if "lora_" in name
    }


def test_the_reference_is_the_policy_without_its_adapters() -> None:
    policy: Policy = jobs.policy_for("grpo", "float64", Limits(16), lora_rank=4)
    jobs.train_until(policy, 1, {})
    batch = policy.annotate(jobs.rollouts_of(policy.model, 2), Clock(), on_policy=False)
    plain = jobs.policy_for("grpo", "float64", Limits(16))  # the same weights, and none beside them
    expected = plain.annotate(jobs.rollouts_of(plain.model, 2), Clock(), on_policy=False)
    assert torch.equal(batch.reference, expected.old)
    assert (batch.old - batch.reference).abs().max() > 1e-4
    again = policy.annotate(jobs.rollouts_of(policy.model, 2), Clock(), on_policy=False)
    assert torch.equal(again.old, batch.old)  # they are on again afterwards


# ---- checkpoints


def trained(model: Scratch | Pretrained = TINY) -> Policy:
    policy: Policy = jobs.policy_of(load_model(model, 0, CPU), jobs.SFT(), optim=jobs.Optim(lr=1e-2))
    for step in (1, 2):
        policy.update(jobs.rollouts_of(policy.model, step), step)
    return policy


def logits(module: torch.nn.Module) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        return module(input_ids=torch.arange(3, 12)[None], use_cache=False).logits


def test_pefts_own_reader_finds_the_same_model(tmp_path: Path) -> None:
    policy = trained()
    policy.model.stop_at([5])
    policy.model.keep_base = True
    folder = saved(policy, tmp_path) / "policy"
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors", "base"}
    assert not (folder / "model.safetensors").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [1, 5]
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float64)
    plain = logits(base)
    theirs = logits(PeftModel.from_pretrained(base, str(folder)))
    assert (theirs - logits(policy.model.module)).abs().max() <= 1e-12
    assert (plain - theirs).abs().max() > 1e-6
    assert (plain - logits(load_model(TINY, 0, CPU, adapt=False).module)).abs().max() <= 1e-12  # as it was


def test_of_weights_that_stand_elsewhere_no_copy_is_kept(tmp_path: Path) -> None:
    origin = load_model(TINY, 0, CPU, adapt=False)
    origin.module.save_pretrained(tmp_path / "origin")
    origin.tokenizer.save_pretrained(tmp_path / "origin")
    policy = trained(Pretrained(path=str(tmp_path / "origin"), dtype="float64", lora_rank=4))
    policy.model.keep_base = False
    folder = saved(policy, tmp_path / "run" / "checkpoints")
    assert not (folder / "policy" / "base").exists()
    config = json.loads((folder / "policy" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "origin")
    merged = load_model(Pretrained(path=str(tmp_path / "run"), dtype="float64"), 0, CPU)
    assert (logits(merged.module) - logits(policy.model.module)).abs().max() <= 1e-12


def test_adapters_upon_adapters_lose_nothing(tmp_path: Path) -> None:
    """Weights A, adapters B upon A, adapters C upon A + B: who loads C gets all three."""
    model: Scratch | Pretrained = replace(TINY, lora_rank=0)
    for name in "abc":
        policy = trained(model)
        folder = saved(policy, tmp_path / name / "checkpoints") / "policy"
        model = Pretrained(path=str(tmp_path / name), dtype="float64", lora_rank=4)
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    assert (folder / "base" / "config.json").is_file()
    found = logits(load_model(replace(model, lora_rank=0), 0, CPU).module)
    assert (found - logits(policy.model.module)).abs().max() <= 1e-9
