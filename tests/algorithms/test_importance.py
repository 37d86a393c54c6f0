"""A token's importance weighs its policy loss, in every RL algorithm, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.algorithms.ppo import PPO
from launcher.spec.algorithm import Algorithm, Batch, Output

ALGORITHMS = [GRPO(), GRPO(clip_ratio_c=3.0), DrGRPO(loss_scale_factor=3.0), GSPO(), DAPO(), GSPOSelfPlay(), PPO()]


def batch_of(rows: int = 3, length: int = 4) -> tuple[Output, Batch]:
    draw = torch.Generator().manual_seed(0)
    logp, old, advantage = (torch.randn(rows, length, generator=draw, dtype=torch.float64) for _ in range(3))
    logp = (-logp.abs()).requires_grad_()
    batch = Batch(
        tokens=torch.zeros(rows, length, dtype=torch.long), length=torch.full((rows,), length),
        mask=torch.ones(rows, length, dtype=torch.float64), group=torch.zeros(rows, dtype=torch.long),
        preference=torch.zeros(rows, dtype=torch.long), old=logp.detach() + 0.3 * old, advantage=advantage,
    )  # fmt: skip
    return Output(logp, logp.detach().abs()), batch


def gradient(algorithm: Algorithm, new: Output, batch: Batch) -> torch.Tensor:
    return torch.autograd.grad(algorithm.loss(new, batch)[0], new.logp)[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_each_tokens_loss_is_weighed(algorithm: Algorithm) -> None:
    new, batch = batch_of()
    plain = gradient(algorithm, new, batch)
    weight = torch.arange(12, dtype=torch.float64).view(3, 4) / 4
    weighed = gradient(algorithm, new, replace(batch, importance=weight))
    assert plain.abs().sum() > 0
    torch.testing.assert_close(weighed, plain * weight)
    torch.testing.assert_close(gradient(algorithm, new, replace(batch, importance=torch.ones_like(weight))), plain)


def test_it_stands_outside_all_clips() -> None:
    """A clipped token (ratio 1.5, A = 1) has the loss -1.2; half its weight is -0.6, not a ratio of 0.75."""
    one = torch.zeros(1, 1, dtype=torch.float64)
    batch = Batch(
        tokens=torch.zeros(1, 1, dtype=torch.long), length=torch.ones(1), mask=one + 1, old=one, advantage=one + 1,
        importance=one + 0.5,
    )  # fmt: skip
    loss, seen = GRPO().loss(Output(one + torch.tensor(1.5).log()), batch)
    assert loss.item() == pytest.approx(-0.6)
    assert seen["actor/pg_clipfrac"].total.item() == 1


def test_the_pull_to_the_reference_and_the_bonus_for_entropy_stay_whole() -> None:
    """They speak of the policy as it is, not of who sampled."""
    new, batch = batch_of()
    batch = replace(batch, advantage=torch.zeros_like(batch.mask), reference=batch.old)
    algorithm = GRPO(kl_loss_coef=0.1, entropy_coeff=0.1)
    weighed = algorithm.loss(new, replace(batch, importance=torch.full_like(batch.mask, 0.5)))[0]
    assert weighed.item() == algorithm.loss(new, batch)[0].item() != 0
