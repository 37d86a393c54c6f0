"""PPO with a critic, its GAE and whitening, against numbers worked out by hand in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.algorithms.ppo import COEFFICIENT, PENALTY, PPO
from launcher.spec.algorithm import Batch


def f64(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def batch_of(mask: Tensor, reward: list[float], value: Tensor, kl: Tensor) -> Batch:
    """`kl` is each token's distance by k1."""
    rewards = torch.tensor(reward, dtype=torch.float64)
    return Batch(mask, mask.sum(1), mask, old=kl - 1, reference=0 * kl - 1, value=value, reward=rewards)


# ---- advantages


def test_prepare_by_hand() -> None:
    """One answer of two tokens, reward 3, values 1 and 2, k1 0.2 and -0.4 at a price of 1/2.

    Rewards -0.1 and 3 + 0.2. A_2 = 3.2 - 2 = 1.2; A_1 = -0.1 + 2 - 1 + 1.2 = 2.1. Returns 3.1 and 3.2.
    Their mean is 1.65, and two numbers always lie 1 / sqrt(2) standard deviations (n - 1) from their mean.
    """
    mask = f64([[0, 1, 1, 0]])
    batch = batch_of(mask, [3.0], f64([[9, 1, 2, 9]]), f64([[9, 0.2, -0.4, 9]]))
    made, state = PPO(kl_coef=0.5).prepare(batch, {})
    assert made.target[0].tolist() == pytest.approx([0, 3.1, 3.2, 0], rel=1e-14)
    assert made.advantage[0].tolist() == pytest.approx([0, math.sqrt(0.5), -math.sqrt(0.5), 0], abs=1e-7)
    assert made.reward.tolist() == pytest.approx([3.1], rel=1e-15)  # 3 - (0.2 - 0.4) / 2
    assert state == {PENALTY: pytest.approx(-0.1, rel=1e-14), COEFFICIENT: 0.5}


def test_an_answer_without_tokens_is_not_rewarded_nor_counted() -> None:
    mask = f64([[1, 1], [0, 0]])
    batch = batch_of(mask, [1.0, 100.0], 0 * mask, f64([[0.1, 0.3], [9, 9]]))
    made, state = PPO(kl_coef=1.0).prepare(batch, {})
    assert made.target[1].tolist() == made.advantage[1].tolist() == [0.0, 0.0]
    assert state[PENALTY] == pytest.approx(0.2, rel=1e-14)  # of one answer, not of two


@pytest.mark.parametrize(("kind", "mean"), [("k1", 0.5), ("k2", 0.25), ("k3", (math.exp(-1) + 1 - 1) / 2)])
def test_the_penalty_is_a_mean_over_tokens_then_answers(kind: str, mean: float) -> None:
    """An answer of one token at distance 1, and one of three at distance 0: 1/2, where a mean over tokens says 1/4."""
    mask = f64([[1, 0, 0], [1, 1, 1]])
    batch = batch_of(mask, [0.0, 0.0], 0 * mask, f64([[1, 0, 0], [0, 0, 0]]))
    assert PPO(kl_penalty=kind).prepare(batch, {})[1][PENALTY] == pytest.approx(mean, rel=1e-14)


def test_the_price_adapts_and_is_paid_in_its_own_step() -> None:
    """Horizon 100, target 0.1: with four answers a step the price moves by at most 0.2 x 4 / 100 = 0.8 %."""
    algorithm, state, price = PPO(kl_coef=0.5, kl_ctrl="adaptive", target_kl=0.1, horizon=100), {}, 0.5
    for kl, answers, moves in (
        (0.3, 4, 1.0),  # nothing is known yet
        (0.11, 4, 1.008),  # 0.3 is 3 times the target: + 0.2 at most
        (0.0, 4, 1.004),  # 0.11 is 1.1 times: + 0.1
        (0.0, 4, 0.992),  # 0: - 0.2 at most
        (0.3, 8, 0.984),  # by the answers that the new price is for
    ):
        mask, price = torch.ones(answers, 2, dtype=torch.float64), price * moves
        made, state = algorithm.prepare(batch_of(mask, [0.0] * answers, 0 * mask, kl * mask), state)
        assert state == {COEFFICIENT: pytest.approx(price, rel=1e-14), PENALTY: pytest.approx(kl, rel=1e-14)}
        assert made.reward.tolist() == pytest.approx([-price * kl * 2] * answers, rel=1e-14)


def test_without_a_price_nobody_asks_for_the_reference() -> None:
    mask = f64([[1, 1]])
    batch = replace(batch_of(mask, [1.0], 0 * mask, mask), old=None, reference=None)
    assert PPO(kl_coef=0.0).prepare(batch, {})[1] == {}


# ---- losses


@pytest.mark.parametrize(
    ("value", "loss", "gradient", "kept"),
    [
        # the value was 1 and should have been 3; a step counts for 0.5 at most
        (1.25, 1.53125, -1.75, False),  # inside: (1.25 - 3)^2 / 2
        (2.5, 1.125, 0.0, True),  # a good step, but too long: (1.5 - 3)^2 / 2, and no more pull
        (0.0, 4.5, -3.0, False),  # a bad one: its own error is the larger one
        (5.5, 3.125, 2.5, False),  # past the target: (5.5 - 3)^2 is more than (1.5 - 3)^2
        (1.5, 1.125, -1.5, False),  # on the edge both are the same
    ],
)
def test_the_value_loss(value: float, loss: float, gradient: float, kept: bool) -> None:
    mask = f64([[1, 0]])
    at = f64([[value, 7.0]]).requires_grad_()
    batch = Batch(mask, mask.sum(1), mask, value=f64([[1, 1]]), target=f64([[3, 0]]))
    found, seen = PPO().value_loss(at, batch)
    found.backward()
    assert found.item() == loss
    assert at.grad is not None
    assert at.grad.tolist() == [[gradient, 0.0]]
    assert {name: (mean.total.item(), mean.count.item()) for name, mean in seen.items()} == {
        "critic/vf_loss": (loss, 1.0),
        "critic/vf_clipfrac": (float(kept), 1.0),
        "critic/vpred_mean": (value, 1.0),
    }


# ---- what advantages are made of


def gae_by_hand(
    reward: Sequence[float], value: Sequence[float], mask: Sequence[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Eq. 16 as the sum it is, over the tokens that count: A_t = sum over l of (gamma lam)^l delta_(t + l)."""
    places = [t for t, m in enumerate(mask) if m]
    values = [value[t] for t in places] + [0.0]
    deltas = [reward[t] + gamma * values[i + 1] - values[i] for i, t in enumerate(places)]
    advantages, returns = [0.0] * len(mask), [0.0] * len(mask)
    for i, t in enumerate(places):
        for ahead in range(i, len(places)):
            advantages[t] += (gamma * lam) ** (ahead - i) * deltas[ahead]
        returns[t] = advantages[t] + value[t]
    return advantages, returns


@pytest.mark.parametrize(("seed", "gamma", "lam"), [(0, 1.0, 1.0), (1, 0.99, 0.95), (2, 0.5, 0.0), (3, 0.0, 1.0)])
def test_gae_jumps_over_masked_tokens(seed: int, gamma: float, lam: float) -> None:
    torch.manual_seed(seed)
    reward, value = torch.randn(6, 11, dtype=torch.float64), torch.randn(6, 11, dtype=torch.float64)
    mask = (torch.rand(6, 11) < 0.6).double()  # holes anywhere
    mask[0] = 0
    found = ops.gae(reward, value, mask, gamma, lam)
    for row, given in enumerate(zip(reward.tolist(), value.tolist(), mask.tolist(), strict=True)):
        for ours, expected in zip(found, gae_by_hand(*given, gamma, lam), strict=True):
            assert ours[row].tolist() == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    ("values", "mask", "expected"),
    [
        # mean 2, squares 1 + 0 + 1 over n - 1 = 2
        ([1, 2, 3, 50], [1, 1, 1, 0], [-1, 0, 1, 0]),
        # mean 1, squares 1 + 1 over 1: sqrt(2)
        ([0, 9, 2, 9], [1, 0, 1, 0], [-1 / math.sqrt(2), 0, 1 / math.sqrt(2), 0]),
        ([4, 9, 9, 9], [1, 0, 0, 0], [0, 0, 0, 0]),  # one value has no spread
        ([4, 9, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0]),  # none at all, and no 0 / 0
    ],
)
def test_whiten(values: list[float], mask: list[float], expected: list[float]) -> None:
    found = ops.whiten(f64([values]), f64([mask]))
    assert found[0].tolist() == pytest.approx(expected, abs=1e-8)  # 1e-8 stands beside the variance
