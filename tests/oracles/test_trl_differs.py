"""Where TRL 1.16 says something else than we do. Each case names the difference and asserts both numbers."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("trl")
import torch

from launcher.algorithms.dpo import DPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.ppo import PPO
from launcher.spec.algorithm import Batch, Output


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_token(log_ratio: float, advantage: float) -> tuple[torch.Tensor, Batch]:
    new, mask = f64(log_ratio)[None], f64(1)[None]
    return new, Batch(mask, f64(1), mask, old=0 * mask, reference=0 * mask, advantage=advantage * mask)


def advantages(algorithm: GRPO, reward: torch.Tensor) -> torch.Tensor:
    """[B] of one group of answers with one token."""
    mask, group = torch.ones(len(reward), 1), torch.zeros(len(reward), dtype=torch.long)
    return algorithm.prepare(Batch(mask, mask[:, 0], mask, group=group, reward=reward), {})[0].advantage[:, 0]


def test_advantages(deviates, trl_advantage) -> None:
    """1e-4 is beside the std, not 1e-6; `loss_type="dr_grpo"` changes how tokens add up, and the std leaves with
    `scale_rewards="none"` only."""
    reward = f64(0, 2)
    found = trl_advantage(reward, 2)[1]
    deviates((advantages(GRPO(), reward)[1], 1 / (math.sqrt(2) + 1e-6)), (found, 1 / (math.sqrt(2) + 1e-4)))
    reward = f64(0, 4)
    found = trl_advantage(reward, 2, loss_type="dr_grpo")[1]
    deviates((advantages(DrGRPO(), reward)[1], 2.0), (found, 2 / (math.sqrt(8) + 1e-4)))


@pytest.mark.parametrize(("reward", "off"), [(0.7, 2.0**-24), (1000.1, 2.0**-14)])
def test_equal_rewards_leave_rounding(deviates, trl_advantage, reward, off) -> None:
    """The float32 mean is `off` by its last bit, and the std by sqrt(7 / 6) of that: 0.0006 and 0.37 are left."""
    rewards = torch.full((7,), reward)
    ours, found = advantages(GRPO(), rewards), trl_advantage(rewards, 7)
    deviates((ours.abs().max(), 0.0), (found.abs().max(), off / (math.sqrt(7 / 6) * off + 1e-4)))


@pytest.mark.parametrize(("kind", "mode"), [("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm")])
def test_a_truncated_answer_still_divides(deviates, mean_loss, trl_grpo, trl_advantage, kind, mode) -> None:
    """`mask_truncated_completions` masks it; it stays in its group's baseline, as ours does, and in the mean."""
    reward, mask = f64(0, 1, 5), f64(1, 1, 0)[:, None]
    algorithm = GRPO(norm_adv_by_std_in_grpo=False, loss_agg_mode=mode)
    batch = Batch(mask, f64(1, 1, 1), mask, group=torch.zeros(3, dtype=torch.long), reward=reward, old=0 * mask)
    made, _ = algorithm.prepare(batch, {})
    assert trl_advantage(reward, 3, scale="none").tolist() == [-2, -1, 3]  # 0, 1 and 5 less 2
    assert made.advantage[:, 0].tolist() == [-2, -1, 0]
    deviates(
        (mean_loss(algorithm, 0 * mask, made), 3 / 2), (trl_grpo(0 * mask, made, loss_type=kind), 3 / 3)
    )  # of three answers one is masked


def test_the_dual_clip_is_off(deviates, trl_grpo) -> None:
    """Ours is off in GRPO and on in PPO, where verl has it on in both."""
    new, batch = one_token(2.0, -1.0)
    found = trl_grpo(new, batch)
    assert GRPO().loss(Output(new), batch)[0].item() == pytest.approx(found.item(), rel=1e-15)
    deviates((PPO().loss(Output(new), batch)[0], 3.0), (found, math.exp(2)))


def test_the_kl_is_weighed_by_the_ratio(deviates, trl_grpo) -> None:
    """By `use_bias_correction_kl`."""
    (new, batch), k3 = one_token(0.5, 0.0), math.exp(-0.5) + 0.5 - 1
    found = trl_grpo(new, batch, beta=1.0, corrected=True)
    deviates((GRPO(kl_loss_coef=1.0).loss(Output(new), batch)[0], k3), (found, math.exp(0.5) * k3))


def test_the_entropy_bonus_is_a_mean_over_tokens(deviates, mean_loss, trl_grpo) -> None:
    """Whatever the loss is a mean over; ours adds up as the rest of the loss does: entropy 1 1 1 and 5 in two
    answers."""
    mask, entropy = f64(1, 1, 1, 1, 0, 0).view(2, 3), f64(1, 1, 1, 5, 0, 0).view(2, 3)
    batch = Batch(mask, f64(3, 1), mask, old=0 * mask, advantage=0 * mask)
    algorithm = GRPO(entropy_coeff=1.0)
    ours = algorithm.loss(Output(0 * mask, entropy), batch)[0] / algorithm.units(batch)
    deviates((ours, -(1 + 5) / 2), (trl_grpo(0 * mask, batch, entropy=entropy, entropy_coef=1.0), -8 / 4))


def pair(margin: tuple[float, float], tokens: tuple[int, int]) -> tuple[torch.Tensor, Batch]:
    """A chosen and a rejected answer, each with its log-ratio in its first token."""
    mask = (torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]).double()
    logp = torch.zeros_like(mask)
    logp[:, 0] = f64(*margin)
    group, preference = torch.zeros(2, dtype=torch.long), torch.tensor([1, -1])
    return logp, Batch(mask, torch.tensor(tokens), mask, group=group, preference=preference, reference=0 * mask)


def test_ipo_is_averaged_over_tokens(deviates, trl_dpo) -> None:
    """Eq. 17 on sums: (2 + 1 - 5)^2; there on means of 2 and 4 tokens: (2 / 2 + 1 / 4 - 5)^2."""
    logp, batch = pair((2.0, -1.0), (2, 4))
    found = trl_dpo(logp, batch, loss_type="ipo", beta=0.1)[0]
    deviates((DPO(loss_type="ipo").loss(Output(logp), batch)[0], 4.0), (found, 3.75**2))


def test_label_smoothing_of_the_sigmoid_is_not_heard(deviates, trl_dpo) -> None:
    logp, batch = pair((0.0, -10.0), (1, 1))
    found = trl_dpo(logp, batch, loss_type="sigmoid", beta=0.1, label_smoothing=0.1)[0]
    right, wrong = math.log1p(math.exp(-1)), math.log1p(math.exp(1))  # the margin is 10, so beta h = 1
    deviates((DPO(label_smoothing=0.1).loss(Output(logp), batch)[0], 0.9 * right + 0.1 * wrong), (found, right))
