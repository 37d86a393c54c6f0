"""What follows from a run's settings: sizes of batches, steps, learning rates, which settings contradict others; and
which algorithms an engine takes, by what they need and define, not by their names."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.algorithms import grpo
from launcher.algorithms.ppo import PPO
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.core.settings import settings
from launcher.engines.torch import Torch
from launcher.spec.algorithm import Algorithm
from launcher.spec.run import usual_lr

GRPO, DPO, SFT = (f"algorithm={name} model=tiny data=reverse" for name in ("grpo", "dpo", "sft"))
EIGHT = f"{GRPO} sampler.n=4 data.train_batch_size=8"
LENGTHS = "data.max_prompt_length=24 data.max_response_length=8"
TWO = f"hardware=cpu hardware.nproc_per_node=2 {EIGHT}"


@pytest.mark.parametrize(("words", "expected"), [
    (EIGHT, {"sequences_per_prompt": 4, "mini_batch_size": 8, "mini_batches": 1, "sequences_per_update": 32}),
    (EIGHT, {"on_policy": True, "has_critic": False, "dropout": False, "label": "grpo-llama-64x2"}),
    (f"{EIGHT} trainer.ppo_mini_batch_size=4", {"mini_batches": 2, "on_policy": False, "sequences_per_update": 16}),
    (f"{EIGHT} trainer.ppo_epochs=2", {"mini_batches": 1, "on_policy": False}),
    (TWO, {"sequences_per_update": 16, "mini_batch_size": 8}),
    (f"{EIGHT} trainer.micro_batch_size_per_gpu=5", {"micro_batch_rows": 5, "micro_batches": 7}),
    (f"{EIGHT} trainer.micro_batch_size_per_gpu=16", {"micro_batch_rows": 16, "micro_batches": 2}),
    (f"{EIGHT} {LENGTHS} trainer.max_tokens_per_gpu=95", {"max_sequence_length": 32, "micro_batches": 16}),
    (f"{EIGHT} {LENGTHS} trainer.max_tokens_per_gpu=96", {"micro_batches": 11}),
    (f"{DPO} trainer.micro_batch_size_per_gpu=5", {"sequences_per_prompt": 2, "micro_batch_rows": 4}),
    (f"{DPO} trainer.micro_batch_size_per_gpu=1", {"micro_batch_rows": 2, "dropout": False}),
    (f"{SFT} trainer.micro_batch_size_per_gpu=5", {"sequences_per_prompt": 1, "micro_batch_rows": 5, "dropout": True}),
])  # fmt: skip
def test_what_follows_from_settings(words: str, expected: dict[str, Any]) -> None:
    run = resolve(words.split())
    assert {name: getattr(run, name) for name in expected} == expected


def test_adapters_and_small_models_learn_with_larger_rates() -> None:
    runs = [resolve(words.split()) for words in (SFT, f"{SFT} model.lora_rank=4")]
    assert [usual_lr(run.algorithm, run.model) for run in runs] == [0.002, 0.005]


def test_steps_of_so_many_rows() -> None:
    run = resolve(f"{TWO} trainer.total_epochs=3 trainer.ppo_mini_batch_size=4".split())
    assert [run.steps_per_epoch(rows) for rows in (7, 8, 15, 16)] == [0, 1, 1, 2]
    assert (run.total_steps(17), run.largest_batch(11), run.largest_batch(3), run.largest_batch(12)) == (6, 8, 0, 12)
    assert resolve(f"{EIGHT} trainer.total_training_steps=5 trainer.total_epochs=3".split()).total_steps(17) == 5


@pytest.mark.parametrize(("words", "problem"), [
    (f"{GRPO} sampler.n=1", "sampler.n: GRPO compares at least 2 answers to a prompt, got 1; use 8"),
    (TWO.replace("=8", "=9"), "data.train_batch_size: 9 rows do not split over 2 processes; use 8 or 10"),
    (TWO.replace("=8", "=1"), "data.train_batch_size: 1 rows do not split over 2 processes; use 2"),
    (f"{EIGHT} trainer.ppo_mini_batch_size=16", "16 prompts do not divide data.train_batch_size=8; use 8"),
    (f"{EIGHT} trainer.ppo_mini_batch_size=3", "3 prompts do not divide data.train_batch_size=8; use 2"),
    (f"{TWO} trainer.ppo_mini_batch_size=1", "1 prompts do not split over 2 processes; use 2"),
    (f"{EIGHT} {LENGTHS} trainer.max_tokens_per_gpu=31", "31 tokens, and prompt and answer may take 32; use 32"),
    (f"{EIGHT} trainer.best_metric=train/loss", "'train/loss' is not of held-out data; use one such as val/loss"),
])  # fmt: skip
def test_settings_that_contradict_each_other(words: str, problem: str) -> None:
    with pytest.raises(Problems) as raised:
        resolve(words.split())
    assert problem in "\n".join(map(str, raised.value.problems))


@settings
class Own(grpo.GRPO):
    """A subclass of one's own."""


@settings
class Bare(Algorithm):
    def loss(self, new: Any, batch: Any) -> Any:
        return new.logp.sum(), {}


@settings
class WithCritic(Bare):
    needs = frozenset({"critic"})


@settings
class WithTeacher(Bare):
    needs = frozenset({"teacher", "old"})


@settings
class OfImages(Bare):
    data = "images"


@pytest.mark.parametrize("algorithm", [Own(), Bare(), Own(kl_loss_coef=0.1), PPO()])
def test_a_class_of_ones_own_is_as_good_as_ours(algorithm: Algorithm) -> None:
    assert Torch().supports(algorithm) == []


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (WithTeacher(), "algorithm: WithTeacher needs teacher, which Torch does not compute; use one that needs only"),
        (OfImages(), "algorithm: OfImages learns from images, which Torch does not read; use one that learns from"),
        (WithCritic(), "algorithm: WithCritic needs a critic and defines no value_loss; define value_loss in it"),
    ],
)
def test_what_the_engine_cannot_do_is_named(algorithm: Algorithm, expected: str) -> None:
    (problem,) = Torch().supports(algorithm)
    assert str(problem).startswith(expected) and problem.code == "not-supported"
