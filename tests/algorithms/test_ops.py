"""How tokens add up, and what is made of groups, against numbers worked out by hand in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.spec.algorithm import Batch


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def advantage(rewards: list[float], groups: list[int], scale: bool = True) -> list[float]:
    return ops.group_advantage(f64(*rewards), ops.group_index(torch.tensor(groups)), scale).tolist()


@pytest.mark.parametrize(
    ("mode", "weights", "units"),
    [
        # two answers of 3 and 1 tokens, and one without: what each token counts for, and what the sum is divided by
        ("token-mean", [[1, 1, 1], [1, 0, 0], [0, 0, 0]], 4),
        ("seq-mean-token-mean", [[1 / 3] * 3, [1, 0, 0], [0, 0, 0]], 2),
        ("seq-mean-token-sum", [[1, 1, 1], [1, 0, 0], [0, 0, 0]], 2),
        ("seq-mean-token-sum-norm", [[1 / 8] * 3, [1 / 8, 0, 0], [0, 0, 0]], 2),
    ],
)
def test_how_tokens_add_up(mode: ops.Aggregation, weights: list[list[float]], units: int) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)
    found, divisor = ops.token_weights(mode, mask, 8.0)
    assert found.tolist() == weights
    assert divisor.item() == units


# ---- groups

EPS = 1e-6


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        # mean 1/2, squares 4 x 1/4 = 1, over n - 1 = 3: std = sqrt(1/3)
        ([1, 0, 0, 1], [0, 0, 0, 0], [s * 0.5 / (math.sqrt(1 / 3) + EPS) for s in (1, -1, -1, 1)]),
        # groups of unlike size, interleaved, numbered neither from 0 nor in order; an answer alone has no siblings to
        # be better than (and 0 / 0 inside n - 1 = 0 is not reached)
        (
            [1, 10, 2, 7, 12, 3],
            [9, 4, 9, 2, 4, 9],
            [-1 / (1 + EPS), -1 / (math.sqrt(2) + EPS), 0, 0, 1 / (math.sqrt(2) + EPS), 1 / (1 + EPS)],
        ),
    ],
)
def test_group_advantage_by_hand(rewards: list[float], groups: list[int], expected: list[float]) -> None:
    assert advantage(rewards, groups) == pytest.approx(expected, rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("scale", [True, False])
def test_a_group_that_is_all_equal_has_exactly_zero(scale: bool) -> None:
    """The float32 mean of 7 x 1000.1 is another number."""
    reward = torch.tensor([1000.1] * 7 + [1.0, 2.0], dtype=torch.float32)  # a second group that does differ
    found = ops.group_advantage(reward, torch.tensor([0] * 7 + [1, 1]), scale)
    assert found[:-2].tolist() == [0.0] * 7
    assert (found[-2:] != 0).all()


def test_what_is_kept_and_left_out() -> None:
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [1, 1]], dtype=torch.float64)
    batch = Batch(mask, f64(2, 1, 2, 2, 2), mask, group=torch.tensor([7, 7, 3, 3, 3]))
    kept = torch.tensor([True, True, False, False, False])
    made = replace(batch, mask=mask * kept[:, None])
    assert ops.group_filter_metrics(batch, made, kept, lambda x: 2 * x) == {  # two processes that hold the same
        "train/groups_kept": 2.0,  # 1 + 1
        "train/groups_filtered": 2.0,
        "train/trainable_token_share": 6 / 18,  # 3 of 9 in each
    }
