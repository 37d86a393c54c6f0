"""What would be taken and ignored is refused."""

from __future__ import annotations

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems

GRPO = ["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=4"]
PPO = ["algorithm=ppo", "model=tiny", "data=reverse"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*GRPO, "trainer.critic_warmup=3"], "trainer.critic_warmup: GRPO has no critic, got 3"),
        ([*GRPO, "engine.offload=[critic]"], "engine.offload: GRPO has no critic here"),
        ([*GRPO, "engine.offload=reference"], "engine.offload: GRPO has no reference here"),
        ([*GRPO, "engine.offload=reward"], "engine.offload: the reward is no model"),
        ([*GRPO, "engine.offload=weights"], "engine.offload: weights rest"),
        ([*PPO, "engine.offload=reference", "model.lora_rank=4"], "without its adapters"),
        ([*PPO, "engine.offload=critic", "engine.strategy=fsdp2", "hardware.nproc_per_node=2"], "`weights` rests"),
        ([*GRPO, "engine.mixed_precision=true", "model.dtype=bfloat16"], "engine.mixed_precision: needs"),
    ],
)
def test_refused(words: list[str], told: str) -> None:
    with pytest.raises(Problems) as found:
        resolve(words)
    assert any(told in line for line in found.value.lines), found.value.lines


def test_what_rests_and_is_needed_is_taken() -> None:
    assert resolve([*PPO, "engine.offload=[critic,reference]"])
