"""Clip, KL, GAE and whitening, against numbers worked out by hand in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.spec.algorithm import Batch


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- clip


def test_the_surrogate_counts_which_clip_made_a_difference() -> None:
    ratio, advantage = f64(1.5, 0.5, 4.0, 1.1, 9.0)[None], f64(1, -1, -1, 1, 1)[None]
    mask = f64(1, 1, 1, 1, 0)[None]
    batch = Batch(mask, f64(5), mask, advantage=advantage * mask)
    loss, seen = ops.surrogate_loss(ratio, ratio.log(), batch, 0.2, 0.28, 3.0)
    assert loss[0].tolist() == pytest.approx([-1.28, 0.8, 3.0, -1.1, 0.0], abs=1e-15)
    assert {name: (mean.total.item(), mean.count.item()) for name, mean in seen.items()} == {
        "actor/pg_clipfrac": (2.0, 4.0),  # the first two
        "actor/pg_clipfrac_lower": (1.0, 4.0),  # the third
        "actor/ppo_kl": (pytest.approx(-math.log(1.5 * 0.5 * 4 * 1.1), abs=1e-15), 4.0),
    }
    assert set(ops.surrogate_loss(ratio, ratio.log(), batch, 0.2, 0.28, None)[1]) == {
        "actor/pg_clipfrac",
        "actor/ppo_kl",
    }


# ---- distance from the reference


@pytest.mark.parametrize(
    ("kind", "logp", "reference", "expected", "gradient"),
    [
        ("k1", -2.0, -1.0, -1.0, 1.0),  # may be negative
        ("k2", -1.0, -2.0, 0.5, 1.0),  # r^2 / 2, gradient -r
        ("k2", -2.0, -0.5, 1.125, -1.5),
        ("k3", -1.0, -2.0, math.exp(-1), 1 - math.exp(-1)),  # gradient 1 - e^r
        ("k3", -25.0, 0.0, math.exp(25) - 26, 1 - math.exp(25)),  # nothing is cut off
    ],
)
def test_kl(kind: ops.Estimator, logp: float, reference: float, expected: float, gradient: float) -> None:
    x = f64(logp).requires_grad_()
    found = ops.KL[kind](x, f64(reference))
    assert found.item() == pytest.approx(expected, rel=1e-15)
    found.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(gradient, rel=1e-15)


# ---- values


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
    for row in range(6):
        expected = gae_by_hand(reward[row].tolist(), value[row].tolist(), mask[row].tolist(), gamma, lam)
        assert found[0][row].tolist() == pytest.approx(expected[0], abs=1e-13)
        assert found[1][row].tolist() == pytest.approx(expected[1], abs=1e-13)


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
    found = ops.whiten(f64(*values)[None], f64(*mask)[None])
    assert found[0].tolist() == pytest.approx(expected, abs=1e-8)  # 1e-8 stands beside the variance
