"""Adapters where they meet something else: validation, and weights that are a merge of other adapters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import torch

from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import Saver, TrainingPosition
from launcher.models.pretrained import Pretrained
from launcher.models.scratch import Scratch

CPU = torch.device("cpu")
TINY = Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype="float64")


def test_held_out_pairs_are_judged_with_the_adapters_on(jobs: ModuleType) -> None:
    policy: Policy = jobs.policy_for("dpo", "float64", Limits(16), lora_rank=4)
    pairs = jobs.pairs_of(policy.model, 9)
    total, count = policy.heldout_losses(pairs)["loss"]
    assert abs(total / count - math.log(2)) > 1e-3  # which it is where both are the reference


def saved(model: Pretrained | Scratch, jobs: ModuleType, root: Path) -> tuple[Path, torch.Tensor]:
    """A run's folder after two steps from `model`, and the logits that it ends with."""
    policy: Policy = jobs.policy_of(load_model(model, 0, CPU), jobs.SFT(), optim=jobs.Optim(lr=1e-2))
    for step in (1, 2):
        policy.update(jobs.rollouts_of(policy.model, step), step)
    assert Saver(root / "checkpoints", policy, 3).save(TrainingPosition(2, 0, 0, 24)).done
    return root, logits(policy.model.module)


def logits(module: torch.nn.Module) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        found: torch.Tensor = module(input_ids=torch.arange(4, 12)[None]).logits
    return found


def test_adapters_upon_adapters_lose_nothing(jobs: ModuleType, tmp_path: Path) -> None:
    """Weights A, adapters B upon A, adapters C upon A + B: who loads C gets all three."""
    a, _ = saved(TINY, jobs, tmp_path / "a")
    b, _ = saved(Pretrained(path=str(a), dtype="float64", lora_rank=4), jobs, tmp_path / "b")
    c, expected = saved(Pretrained(path=str(b), dtype="float64", lora_rank=4), jobs, tmp_path / "c")
    policy = c / "checkpoints" / "step_000002" / "policy"
    assert json.loads((policy / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    assert (policy / "base" / "config.json").is_file()
    found = logits(load_model(Pretrained(path=str(c), dtype="float64"), 0, CPU).module)
    assert (found - expected).abs().max() <= 1e-9


def test_adapters_upon_weights_name_where_these_stand(jobs: ModuleType, tmp_path: Path) -> None:
    a, _ = saved(TINY, jobs, tmp_path / "a")
    b, _ = saved(Pretrained(path=str(a), dtype="float64", lora_rank=4), jobs, tmp_path / "b")
    policy = b / "checkpoints" / "step_000002" / "policy"
    named = json.loads((policy / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(a / "checkpoints" / "step_000002" / "policy")
    assert not (policy / "base").exists()
