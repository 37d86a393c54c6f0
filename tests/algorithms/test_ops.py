"""The shared arithmetic, against numbers worked out by hand in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops

torch.set_num_threads(1)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def advantage(rewards: list[float], groups: list[int], scale: bool = True) -> list[float]:
    return ops.group_advantage(f64(*rewards), torch.tensor(groups), scale).tolist()


@pytest.mark.parametrize(
    ("mask", "weights"),
    [
        ([0, 1, 1, 0], [0, 1 / 2, 1 / 2, 0]),  # two tokens share the answer's 1
        ([0, 0, 1, 0], [0, 0, 1, 0]),  # one token takes it all
        ([1, 1, 1, 1], [1 / 4] * 4),
        ([0, 0, 0, 0], [0, 0, 0, 0]),  # no answer counts for nothing, and is no 0 / 0
    ],
)
def test_per_sequence(mask: list[int], weights: list[float]) -> None:
    assert ops.per_sequence(f64(*mask)[None]).tolist() == [weights]


# ---- advantage

EPS = 1e-6


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        # mean 1/2, squares 4 x 1/4 = 1, over n - 1 = 3: std = sqrt(1/3)
        ([1, 0, 0, 1], [0, 0, 0, 0], [s * 0.5 / (math.sqrt(1 / 3) + EPS) for s in (1, -1, -1, 1)]),
        # mean 2, squares 1 + 0 + 1 = 2, over 2: std = 1
        ([1, 2, 3], [0, 0, 0], [-1 / (1 + EPS), 0, 1 / (1 + EPS)]),
        # mean 1, squares 1 + 1 = 2, over 1: std = sqrt(2)
        ([0, 2], [0, 0], [-1 / (math.sqrt(2) + EPS), 1 / (math.sqrt(2) + EPS)]),
        # an answer alone has no siblings to be better than (and 0 / 0 inside n - 1 = 0 is not reached)
        ([5], [0], [0]),
        ([5, 0, 2], [0, 1, 1], [0, -1 / (math.sqrt(2) + EPS), 1 / (math.sqrt(2) + EPS)]),
        # groups of unlike size, interleaved, numbered neither from 0 nor in order
        (
            [1, 10, 2, 7, 12, 3],
            [9, 4, 9, 2, 4, 9],
            [-1 / (1 + EPS), -1 / (math.sqrt(2) + EPS), 0, 0, 1 / (math.sqrt(2) + EPS), 1 / (1 + EPS)],
        ),
    ],
)
def test_group_advantage_by_hand(rewards: list[float], groups: list[int], expected: list[float]) -> None:
    assert advantage(rewards, groups) == pytest.approx(expected, rel=1e-14, abs=1e-15)


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([1, 0, 0, 1], [0, 0, 0, 0], [0.5, -0.5, -0.5, 0.5]),
        ([1, 2, 6], [0, 0, 0], [-2, -1, 3]),  # mean 3
        ([1, 2, 6, 4], [0, 0, 0, 1], [-2, -1, 3, 0]),
    ],
)
def test_without_scaling_it_is_the_distance_from_the_mean(
    rewards: list[float], groups: list[int], expected: list[float]
) -> None:
    assert advantage(rewards, groups, scale=False) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(
    "rewards",
    [
        [0.7] * 7,  # the float32 mean of 7 x 0.7 is not 0.7: verl says 0.056
        [1000.1] * 7,  # ... and here 0.91
        [0.1] * 10,
        [0.0] * 3,
        [-3.3] * 2,
    ],
)
def test_a_group_that_is_all_equal_has_exactly_zero(rewards: list[float], scale: bool, dtype: torch.dtype) -> None:
    reward = torch.tensor([*rewards, 1.0, 2.0], dtype=dtype)  # a second group that does differ
    group = torch.tensor([0] * len(rewards) + [1, 1])
    found = ops.group_advantage(reward, group, scale)
    assert found[:-2].tolist() == [0.0] * len(rewards)
    assert (found[-2:] != 0).all()


def test_float32_rounding_alone_would_not_be_zero() -> None:
    """The row above can fail: without the guard, rounding is scaled up."""
    reward = torch.full((7,), 1000.1)
    centred = reward - reward.sum() / 7
    assert centred.abs().max() > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_added_to_the_rewards_does_not_matter(seed: int) -> None:
    torch.manual_seed(seed)
    reward, group = torch.rand(24, dtype=torch.float64), torch.randint(0, 5, (24,))
    for constant in (-3.0, 0.125, 100.0):
        assert torch.allclose(
            ops.group_advantage(reward + constant, group, True), ops.group_advantage(reward, group, True), atol=1e-10
        )


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_answers_does_not_matter(seed: int) -> None:
    torch.manual_seed(seed)
    reward, group = torch.rand(24, dtype=torch.float64), torch.randint(0, 5, (24,))
    shuffled = torch.randperm(24)
    found = ops.group_advantage(reward[shuffled], group[shuffled], True)
    assert torch.allclose(found, ops.group_advantage(reward, group, True)[shuffled], atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_a_group_add_up_to_zero_and_have_unit_spread(seed: int) -> None:
    torch.manual_seed(seed)
    reward = torch.rand(12, dtype=torch.float64)
    found = ops.group_advantage(reward, torch.arange(12) // 4, True).view(3, 4)
    assert found.sum(1).abs().max() < 1e-13
    assert torch.allclose(found.std(1), torch.ones(3, dtype=torch.float64), atol=1e-4)  # 1e-6 stands beside the std


def test_same_in_group() -> None:
    reward, group = f64(1, 2, 1, 3, 2, 5), torch.tensor([0, 1, 0, 2, 1, 2])
    assert ops.same_in_group(reward, group).tolist() == [True, True, True, False, True, False]


# ---- clip and KL


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, +1.0, -1.28),  # wanted, and already far up: stop at 1 + 0.28
        (0.5, +1.0, -0.5),  # wanted, but fell: full pull
        (0.5, -1.0, +0.8),  # unwanted, and already far down: stop at 1 - 0.2
        (1.5, -1.0, +1.5),  # unwanted, but rose: full push
        (1.1, +2.0, -2.2),  # inside: the plain product
        (0.9, -2.0, +1.8),
        (1.28, +1.0, -1.28),  # on the edge both are the same
        (7.0, 0.0, 0.0),
    ],
)
def test_clipped(ratio: float, advantage: float, expected: float) -> None:
    found = ops.clipped(f64(ratio)[None], f64(advantage)[None], 0.2, 0.28)
    assert found.item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [
        (1.5, +1.0, 0.0),  # clipped: this token pulls no more
        (0.5, +1.0, -1.0),
        (0.5, -1.0, 0.0),
        (1.5, -1.0, +1.0),
    ],
)
def test_where_the_clip_binds_there_is_no_gradient(ratio: float, advantage: float, gradient: float) -> None:
    x = f64(ratio)[None].requires_grad_()
    ops.clipped(x, f64(advantage)[None], 0.2, 0.28).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == gradient


@pytest.mark.parametrize(
    ("logp", "reference", "expected"),
    [
        (-1.0, -1.0, 0.0),  # equal: no divergence
        (-1.0, -2.0, math.exp(-1) + 1 - 1),  # d = -1: e^-1 - (-1) - 1 = 0.3679
        (-2.0, -1.0, math.e - 2),  # d = 1: e - 1 - 1 = 0.7183
        (math.log(0.5), math.log(0.25), 0.5 + math.log(2) - 1),  # d = -ln 2: 0.5 + 0.6931 - 1 = 0.1931
    ],
)
def test_k3(logp: float, reference: float, expected: float) -> None:
    assert ops.k3(f64(logp), f64(reference)).item() == pytest.approx(expected, abs=1e-15)


def test_k3_is_the_divergence_on_average_and_never_negative() -> None:
    policy, reference = f64(0.5, 0.3, 0.2), f64(0.2, 0.2, 0.6)
    estimate = ops.k3(policy.log(), reference.log())
    # 0.5 ln 2.5 + 0.3 ln 1.5 + 0.2 ln(1/3) = 0.4581 + 0.1216 - 0.2197 = 0.3600
    assert (policy * estimate).sum().item() == pytest.approx(
        0.5 * math.log(2.5) + 0.3 * math.log(1.5) - 0.2 * math.log(3), abs=1e-14
    )
    assert (estimate >= 0).all()
