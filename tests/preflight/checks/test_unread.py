"""Settings that a run does not read are warned of."""

from __future__ import annotations

import pytest

from launcher.config.resolve import resolve
from launcher.preflight.checks import unread
from launcher.preflight.checks.context import Context

SFT, GRPO = ("algorithm=sft", "model=tiny", "data=reverse"), ("algorithm=grpo", "model=tiny", "data=reverse")


@pytest.mark.parametrize(
    ("words", "subject", "fix"),
    [
        ((*GRPO, "critic.optim.lr=1e-3"), "critic.optim.lr", "algorithm=ppo"),
        ((*GRPO, "algorithm.kl_loss_type=k2"), "algorithm.kl_loss_type", "algorithm.kl_loss_coef=0.001"),
        ((*GRPO, "data.noise=0.1"), "data.noise", "algorithm=sft"),
        ((*SFT, "sampler.n=4"), "sampler.n", "algorithm=grpo"),
        ((*SFT, "model.lora_alpha=64"), "model.lora_alpha", "model.lora_rank=32"),
        ((*SFT, "trainer.total_epochs=2", "trainer.total_training_steps=9"), "trainer.total_epochs", "null"),
        # what is read is not warned of
        ((*GRPO, "algorithm.kl_loss_coef=0.04", "algorithm.kl_loss_type=k2"), "", ""),
        ((*GRPO, "algorithm.clip_ratio_high=0.28", "trainer.ppo_mini_batch_size=8"), "", ""),
        (("algorithm=ppo", *SFT[1:], "critic.optim.lr=1e-4", "algorithm.kl_ctrl=adaptive", "algorithm.target_kl=0.2"),
         "", ""),
        ((*SFT, "model.lora_rank=8", "model.lora_alpha=64", "engine.strategy=fsdp2", "hardware.nproc_per_node=2"),
         "", ""),
    ],
)  # fmt: skip
def test_what_is_not_read_is_warned_of(words: tuple[str, ...], subject: str, fix: str) -> None:
    found = list(unread.check(Context(resolve(words), here=True)))
    assert [(one.level, one.subject) for one in found] == [("WARN", subject)] * bool(subject)
    assert all(fix in one.fix and "leave it out" in one.fix for one in found)
