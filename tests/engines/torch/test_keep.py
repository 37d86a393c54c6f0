"""The best checkpoint stays through training, a full disk and a resume; and how far weights moved since the start."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch

from launcher.algorithms.sft import SFT
from launcher.core import checkpoints
from launcher.engines.torch.model.load import load_model
from launcher.engines.torch.train import movement
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.movement import SAMPLED, distances, part_of, sample
from launcher.engines.torch.train.policy import Policy
from launcher.engines.torch.train.save import LastValidation, Saver, TrainingPosition, load_optimizers, read_position
from launcher.models.scratch import Scratch
from launcher.spec.run import Optim

REWARD, LOSS = "val-core/reverse/reward/mean@1", "val/loss"
LLAMA = Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1)


@pytest.fixture
def policy() -> Policy:
    model = load_model(LLAMA, 0, torch.device("cpu"))
    return jobs.policy_of(model, SFT(), optim=Optim(lr=1e-2), limits=Limits(4), steps=8)


def at(step: int, score: float | None, name: str = REWARD) -> TrainingPosition:
    """Where training stands after a step; its latest validation is of this step where it has a score."""
    seen = LastValidation(0, {name: 9.0}) if score is None else LastValidation(step, {name: score})
    return TrainingPosition(step, 2**62, 3, 24, {"actor/reward_kl_penalty": 0.1 + 0.2}, seen)


def kept(root: Path) -> list[int]:
    return sorted(map(checkpoints.step_of, checkpoints.newest_first(root)))


@pytest.mark.parametrize(
    ("scores", "name", "more", "stay"),
    [
        ([0.9, 0.1, 0.2, 0.3], REWARD, {}, [1, 4]),
        ([0.9, 0.1, 0.2, 0.3], LOSS, {}, [2, 4]),  # less is better
        ([0.9, None, None, 0.3], REWARD, {}, [1, 4]),  # a validation of long ago says nothing of these weights
        ([math.nan, 0.1, 0.2, 0.3], REWARD, {}, [4]),
        ([0.9, 0.8, 0.2, 0.3], REWARD, {"best": 2}, [1, 2, 4]),
    ],
)
def test_the_best_stays_beside_the_newest(
    scores: list[float | None], name: str, more: dict[str, Any], stay: list[int], tmp_path: Path, policy: Policy
) -> None:
    for step, score in enumerate(scores, 1):
        written = Saver(tmp_path, policy, 1, **more).save(at(step, score, name))  # as after a resume each time
        assert (written.done, written.message) == (True, "")
    assert kept(tmp_path) == stay


def test_a_checkpoint_says_how_good_it_is(tmp_path: Path, policy: Policy) -> None:
    position = at(3, math.nan)
    assert Saver(tmp_path, policy, 3).save(position).done
    folder = tmp_path / "step_000003"
    strict = lambda word: pytest.fail(f"{word} is no JSON")
    json.loads((folder / "trainer.json").read_text(), parse_constant=strict)
    found = read_position(folder)
    assert found.validated.step == 3 and math.isnan(found.validated.metrics[REWARD])
    assert Saver(tmp_path, policy, 3).save(at(4, 0.5)).done
    assert read_position(tmp_path / "step_000004") == at(4, 0.5)


def full_at(monkeypatch: pytest.MonkeyPatch, root: Path, count: int) -> None:
    """A disk with room for `count` checkpoints: beyond that nothing more becomes durable."""

    def sync(path: Path) -> None:
        if len(checkpoints.newest_first(root)) >= count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(checkpoints, "fsync_path", sync)


def test_on_a_full_disk_the_best_and_the_newest_stay_and_the_others_make_room(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, score in enumerate([0.1, 0.9, 0.2, 0.3], 1):
        assert Saver(tmp_path, policy, 9).save(at(step, score)).done
    full_at(monkeypatch, tmp_path, 4)
    written = Saver(tmp_path, policy, 9).save(at(5, 0.2))
    assert written.message.startswith("step_000005 written only after removing step_000003, step_000001: ")
    assert kept(tmp_path) == [2, 4, 5]
    full_at(monkeypatch, tmp_path, 2)
    written = Saver(tmp_path, policy, 9).save(at(6, 0.2))
    assert not written.done and "removing step_000004 made too little room" in written.message
    assert kept(tmp_path) == [2, 5]
    written = Saver(tmp_path, policy, 9).save(at(7, 0.2))
    assert not written.done and written.message.startswith("step_000007 not written: ")
    assert kept(tmp_path) == [2, 5]  # the best and the newest good one are never given up, even for a newer


# ---- how far weights moved


PARTS = {
    "module.transformer.wte.weight": "embedding",
    "module.model.layers.0.self_attn.q_proj.weight": "attention",
    "module.model.layers.0.self_attn.q_norm.weight": "norms",
    "module.transformer.h.0.ln_1.weight": "norms",
    "module.model.layers.0.mlp.experts.gate_up_proj": "mlp",
    "module.lm_head.weight": "head",
    "module.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight": "lora_B",
    "module.model.layers.0.conv.weight": "other",
}


def test_a_weight_belongs_to_a_part() -> None:
    assert {name: part_of(name) for name in PARTS} == PARTS


def test_a_sample_says_how_far_a_large_weight_moved(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_resumed_run_measures_from_its_beginning(start: bool, tmp_path: Path) -> None:
    policy = jobs.policy_for("sft", "float64", jobs.Limits(16))
    policy.actor.start = sample(policy.actor.network) if start else None  # as in an older checkpoint
    jobs.train_until(policy, 1, {})
    before = distances(policy.actor)
    assert bool(before) == start and all(x > 0 for x in before.values())
    Saver(tmp_path, policy, 3).save(TrainingPosition(1, 0, 0, 24))
    policy.actor.start = sample(policy.actor.network)  # of the weights that it goes on with
    load_optimizers(policy, next(tmp_path.iterdir()))
    assert distances(policy.actor) == before
