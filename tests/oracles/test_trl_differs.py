"""Where TRL 1.16 says something else than we do. Each test names the difference and asserts both numbers."""

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


# ---- groups


def test_a_hundred_times_more_beside_the_std(deviates, trl_advantage) -> None:
    reward = f64(0, 2)
    ours, found = advantages(GRPO(), reward)[1], trl_advantage(reward, 2)[1]
    deviates(
        "rewards 0 and 2: 1e-4 beside the std, not 1e-6", "TRL",
        (ours, 1 / (math.sqrt(2) + 1e-6)), (found, 1 / (math.sqrt(2) + 1e-4)),
    )  # fmt: skip
    assert abs(ours - found) > 4e-5


@pytest.mark.parametrize(("reward", "off"), [(0.7, 2.0**-24), (1000.1, 2.0**-14)])
def test_equal_rewards_leave_rounding(deviates, trl_advantage, reward, off) -> None:
    """The float32 mean is `off` by its last bit, and the std by sqrt(7 / 6) of that."""
    rewards = torch.full((7,), reward)
    ours, found = advantages(GRPO(), rewards), trl_advantage(rewards, 7)
    assert (ours == 0).all()
    left = off / (math.sqrt(7 / 6) * off + 1e-4)  # 0.0006 and 0.37
    deviates(f"advantage of 7 x {reward}, float32", "TRL", (ours.abs().max(), 0.0), (found.abs().max(), left))


def test_dr_grpo_keeps_the_std(deviates, trl_advantage) -> None:
    """There `loss_type="dr_grpo"` changes how tokens add up; the std leaves with `scale_rewards="none"`."""
    reward = f64(0, 4)
    ours, found = advantages(DrGRPO(), reward)[1], trl_advantage(reward, 2, loss_type="dr_grpo")[1]
    deviates("dr_grpo's advantage, rewards 0 and 4", "TRL", (ours, 2.0), (found, 2 / (math.sqrt(8) + 1e-4)))


# ---- masked answers


@pytest.mark.parametrize(("kind", "mode"), [("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm")])
def test_a_truncated_answer_still_divides(deviates, mean_loss, trl_grpo, trl_advantage, kind, mode) -> None:
    """`mask_truncated_completions` masks it; it stays in its group's baseline, as ours does, and in the mean."""
    reward, mask = f64(0, 1, 5), f64(1, 1, 0)[:, None]
    algorithm = GRPO(norm_adv_by_std_in_grpo=False, loss_agg_mode=mode)
    batch = Batch(mask, f64(1, 1, 1), mask, group=torch.zeros(3, dtype=torch.long), reward=reward, old=0 * mask)
    made, _ = algorithm.prepare(batch, {})
    baseline = trl_advantage(reward, 3, scale="none")
    assert baseline.tolist() == [-2, -1, 3]  # 0, 1 and 5 less 2
    assert made.advantage[:, 0].tolist() == [-2, -1, 0]
    ours, theirs = mean_loss(algorithm, 0 * mask, made), trl_grpo(0 * mask, made, loss_type=kind)
    deviates(f"{kind} where 1 of 3 answers is masked", "TRL", (ours, 3 / 2), (theirs, 3 / 3))


# ---- the loss


def test_the_dual_clip_is_off(deviates, trl_grpo) -> None:
    """Ours is off in GRPO and on in PPO, where verl has it on in both."""
    new, batch = one_token(2.0, -1.0)
    found = trl_grpo(new, batch)
    assert GRPO().loss(Output(new), batch)[0].item() == pytest.approx(found.item(), rel=1e-15)
    deviates("no dual clip in PPO's loss", "TRL", (PPO().loss(Output(new), batch)[0], 3.0), (found, math.exp(2)))


def test_the_kl_is_weighed_by_the_ratio(deviates, trl_grpo) -> None:
    new, batch = one_token(0.5, 0.0)
    ours, found = GRPO(kl_loss_coef=1.0).loss(Output(new), batch)[0], trl_grpo(new, batch, beta=1.0, corrected=True)
    k3 = math.exp(-0.5) + 0.5 - 1
    deviates("k3 times the ratio, use_bias_correction_kl", "TRL", (ours, k3), (found, math.exp(0.5) * k3))


def test_the_entropy_bonus_is_a_mean_over_tokens(deviates, trl_grpo) -> None:
    """Whatever the loss is a mean over; ours adds up as the rest of the loss does."""
    mask, entropy = f64(1, 1, 1, 1, 0, 0).view(2, 3), f64(1, 1, 1, 5, 0, 0).view(2, 3)
    batch = Batch(mask, f64(3, 1), mask, old=0 * mask, advantage=0 * mask)
    algorithm = GRPO(entropy_coeff=1.0)
    ours = algorithm.loss(Output(0 * mask, entropy), batch)[0] / algorithm.units(batch)
    found = trl_grpo(0 * mask, batch, entropy=entropy, entropy_coef=1.0)
    deviates("entropy 1 1 1 and 5 in two answers, grpo", "TRL", (ours, -(1 + 5) / 2), (found, -8 / 4))


# ---- pairs


def pair(margin: tuple[float, float], tokens: tuple[int, int]) -> tuple[torch.Tensor, Batch]:
    """A chosen and a rejected answer, each with its log-ratio in its first token."""
    mask = (torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]).double()
    logp = torch.zeros_like(mask)
    logp[:, 0] = f64(*margin)
    group, preference = torch.zeros(2, dtype=torch.long), torch.tensor([1, -1])
    return logp, Batch(mask, torch.tensor(tokens), mask, group=group, preference=preference, reference=0 * mask)


def test_ipo_is_averaged_over_tokens(deviates, trl_dpo) -> None:
    logp, batch = pair((2.0, -1.0), (2, 4))
    ours = DPO(loss_type="ipo").loss(Output(logp), batch)[0]
    found = trl_dpo(logp, batch, loss_type="ipo", beta=0.1)[0]
    # eq. 17 on sums: (2 + 1 - 5)^2; there: (2 / 2 + 1 / 4 - 5)^2
    deviates("IPO of 2 in 2 tokens and -1 in 4", "TRL", (ours, 4.0), (found, 3.75**2))
    averaged = DPO(loss_type="ipo", length_normalised=True).loss(Output(logp), batch)[0]
    assert averaged.item() == pytest.approx(found.item(), rel=1e-15)


def test_label_smoothing_of_the_sigmoid_is_not_heard(deviates, trl_dpo) -> None:
    logp, batch = pair((0.0, -10.0), (1, 1))
    ours = DPO(label_smoothing=0.1).loss(Output(logp), batch)[0]
    found = trl_dpo(logp, batch, loss_type="sigmoid", beta=0.1, label_smoothing=0.1)[0]
    right, wrong = math.log1p(math.exp(-1)), math.log1p(math.exp(1))  # the margin is 10, so beta h = 1
    deviates("label_smoothing=0.1 of the sigmoid", "TRL", (ours, 0.9 * right + 0.1 * wrong), (found, right))
