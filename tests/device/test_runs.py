"""Every algorithm, and all that may stand beside the policy, on the pretend device as on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification
from twins import TOLERANCE, Foreign, Trained, Unsure, difference, spec, train

from launcher.spec.run import RunSpec
from launcher.text.tokenizer import character_tokenizer

UPDATES = ["trainer.ppo_mini_batch_size=2", "trainer.ppo_epochs=2", "trainer.micro_batch_size_per_gpu=3"]
REFERENCE = ["algorithm.kl_loss_coef=0.04"]
CASES = {
    "sft": ["algorithm=sft"],
    "dpo": ["algorithm=dpo"],
    "ppo": ["algorithm=ppo", "algorithm.kl_coef=0.05"],
    "gspo": ["algorithm=gspo", "trainer.ppo_mini_batch_size=2"],
    "gspo_selfplay": ["algorithm=gspo_selfplay"],
    "dapo": ["algorithm=dapo", "algorithm.overlong_buffer_len=4", "algorithm.max_num_gen_batches=3"],
    "dpo lora": ["algorithm=dpo", "model.lora_rank=4"],
    "ppo offload": ["algorithm=ppo", "engine.offload=[reference,critic]", "trainer.critic_warmup=1", *UPDATES],
    "ppo lora checkpointing": ["algorithm=ppo", "model.lora_rank=4", "model.enable_gradient_checkpointing=true"],
    "grpo lora": ["algorithm=grpo", *REFERENCE, "model.lora_rank=4"],
    "grpo by tokens": [
        "algorithm=grpo", *REFERENCE, "algorithm.entropy_coeff=0.01", "trainer.max_tokens_per_gpu=64",
    ],
    "grpo qwen3 sampling": [
        "algorithm=grpo", "model.architecture=qwen3", "model.tie_word_embeddings=true", "sampler.top_k=12",
        "sampler.top_p=0.9", "sampler.val_n=4", "sampler.val_temperature=1", "algorithm.clip_ratio_c=3",
    ],
}  # fmt: skip
Compared = Callable[[RunSpec, RunSpec], Trained]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Trains a run on the CPU and on the device; what the latter showed is equal to the former, and is returned."""

    def compare(on_cpu: RunSpec, on_device: RunSpec) -> Trained:
        expected, found = train(on_cpu, tmp_path / "cpu"), train(on_device, tmp_path / "device")
        assert difference(expected, found) <= TOLERANCE
        assert found.use.meetings == []
        assert max(step.get("actor/grad_norm", 1.0) for step in found.steps) > 0
        return found

    return compare


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_run_trains_as_on_the_cpu(words: list[str], compared: Compared) -> None:
    compared(spec(*words), spec(*words, on_device=True))


def test_a_reward_model_scores_as_on_the_cpu(tmp_path: Path, compared: Compared) -> None:
    """In float64: weights read from a file may lie at any address, and in float32 the CPU's sums depend on that."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., ")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).double().save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    words = ["algorithm=grpo", "reward=model", f"reward.path={tmp_path / 'judge'}", "engine.offload=[reward]"]
    found = compared(spec(*words), spec(*words, on_device=True))
    assert len({step["critic/score/mean"] for step in found.steps if "critic/score/mean" in step}) > 1


def test_answers_without_a_score_are_left_out_as_on_the_cpu(compared: Compared) -> None:
    on_cpu, on_device = (replace(spec("algorithm=grpo", on_device=on), reward=Unsure()) for on in (False, True))
    found = compared(on_cpu, on_device)
    assert any(step.get("reward/faults") for step in found.steps)


def test_answers_of_another_program_are_learnt_from_as_on_the_cpu(compared: Compared) -> None:
    on_cpu, on_device = (replace(spec("algorithm=grpo", on_device=on), sampler=Foreign(n=4)) for on in (False, True))
    found = compared(on_cpu, on_device)
    assert all("rollout_corr/kl" in step for step in found.steps[1:])


@pytest.mark.parametrize("name", ["ppo", "dapo", "grpo lora"])
def test_a_resumed_run_ends_as_the_unbroken_one(name: str, tmp_path: Path) -> None:
    words = CASES[name]
    whole = train(spec(*words, on_device=True), tmp_path / "whole")
    for folder, on_device in (("device", True), ("cpu", False)):
        part = Path("checkpoints") / "step_000002"
        shutil.copytree(tmp_path / "whole" / part, tmp_path / folder / part)
        resumed = train(spec(*words, on_device=on_device), tmp_path / folder, start=2)
        assert difference(whole.after(2), resumed) <= TOLERANCE


def test_no_memory_of_the_device_is_held_from_step_to_step(tmp_path: Path) -> None:
    found = train(spec(*CASES["ppo offload"], "trainer.total_training_steps=3", on_device=True), tmp_path)
    assert found.bytes[2] == found.bytes[3] < found.use.peak_bytes
