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
    ],
    ids=lambda found: found if isinstance(found, str) else found[-1],
)
def test_what_is_not_read_is_warned_of(words: tuple[str, ...], subject: str, fix: str) -> None:
    (found,) = unread.check(Context(resolve(words), here=True))
    assert (found.level, found.subject) == ("WARN", subject)
    assert fix in found.fix and "leave it out" in found.fix


@pytest.mark.parametrize(
    "words",
    [
        (*GRPO, "algorithm.kl_loss_coef=0.04", "algorithm.kl_loss_type=k2"),
        (*GRPO, "algorithm.clip_ratio_high=0.28", "trainer.ppo_mini_batch_size=8"),
        ("algorithm=ppo", *SFT[1:], "critic.optim.lr=1e-4", "algorithm.kl_ctrl=adaptive", "algorithm.target_kl=0.2"),
        (*SFT, "model.lora_rank=8", "model.lora_alpha=64", "engine.strategy=fsdp2", "hardware.nproc_per_node=2"),
    ],
    ids=lambda words: words[-1],
)
def test_what_is_read_is_not(words: tuple[str, ...]) -> None:
    assert not list(unread.check(Context(resolve(words), here=True)))
