"""DPO and its relatives against hand-made numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.algorithms.dpo import DPO
from launcher.spec.algorithm import Batch, Output

LN2 = math.log(2)


def pair(chosen: list[float], rejected: list[float]) -> tuple[Tensor, Batch]:
    """A pair by its tokens' log-ratios to the reference, whose log-probabilities are -1; the rejected answer first."""
    columns = max(len(chosen), len(rejected))
    lengths = torch.tensor([len(rejected), len(chosen)])
    mask = (torch.arange(columns) < lengths[:, None]).double()
    ratios = [[*row, *[0.0] * (columns - len(row))] for row in (rejected, chosen)]
    logp = (torch.tensor(ratios, dtype=torch.float64) - 1) * mask
    group, preference = torch.tensor([4, 4]), torch.tensor([-1, 1])
    return logp, Batch(mask, lengths, mask, group=group, preference=preference, reference=-mask)


def loss_of(told: dict[str, Any], chosen: list[float], rejected: list[float]) -> float:
    logp, batch = pair(chosen, rejected)
    algorithm = DPO(**told)
    assert algorithm.units(batch).item() == 1  # one pair
    return algorithm.loss(Output(logp), batch)[0].item()


@pytest.mark.parametrize(
    ("told", "chosen", "rejected", "expected"),
    [
        # h = (1 + 2) - (-1) = 4; beta h = 0.4
        ({}, [1.0, 2.0], [-1.0], math.log1p(math.exp(-0.4))),
        ({"beta": 1.0}, [1.0, 2.0], [-1.0], math.log1p(math.exp(-4))),
        # h = -4: the wrong way round
        ({}, [-1.0], [1.0, 2.0], math.log1p(math.exp(0.4))),
        # what both gained alike counts nothing
        ({}, [5.0], [2.0, 3.0], LN2),
        # 0.8 L(0.4) + 0.2 L(-0.4)
        (
            {"label_smoothing": 0.2}, [1.0, 2.0], [-1.0],
            0.8 * math.log1p(math.exp(-0.4)) + 0.2 * math.log1p(math.exp(0.4)),
        ),
        ({"loss_type": "hinge"}, [1.0, 2.0], [-1.0], 0.6),  # 1 - 0.4
        ({"loss_type": "hinge", "beta": 1.0}, [1.0, 2.0], [-1.0], 0.0),  # 1 - 4: far enough
        ({"loss_type": "hinge"}, [-1.0], [1.0, 2.0], 1.4),
        ({"loss_type": "ipo"}, [1.0, 2.0], [-1.0], 1.0),  # (4 - 5)^2
        ({"loss_type": "ipo"}, [2.0, 6.0], [-1.0], 16.0),  # (9 - 5)^2: too far apart costs as well
        # (3 / 2 + 1 - 5)^2
        ({"loss_type": "ipo", "length_normalised": True}, [1.0, 2.0], [-1.0], 6.25),
    ],
)  # fmt: skip
def test_by_hand(told: dict[str, Any], chosen: list[float], rejected: list[float], expected: float) -> None:
    assert loss_of(told, chosen, rejected) == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_a_sum_is_not_moved_by_rounding_far_out() -> None:
    assert loss_of({"beta": 1.0}, [900.0], [0.0]) == 0.0
    assert loss_of({"beta": 1.0}, [0.0], [900.0]) == 900.0


def test_what_it_reports() -> None:
    """Two pairs: the first with margin 4 in the right order, the second with -1 in the wrong one; beta is 0.5."""
    mask = torch.ones(4, 1, dtype=torch.float64)
    logp = torch.tensor([[3.0], [-1.0], [2.0], [1.0]], dtype=torch.float64)
    group, preference = torch.tensor([0, 0, 1, 1]), torch.tensor([1, -1, -1, 1])
    batch = Batch(mask, mask[:, 0], mask, group=group, preference=preference, reference=0 * mask)
    loss, seen = DPO(beta=0.5).loss(Output(logp), batch)
    assert DPO().units(batch).item() == 2
    assert all(mean.count.item() == 2 for mean in seen.values())
    assert {name: mean.total.item() for name, mean in seen.items()} == pytest.approx(
        {
            "actor/dpo_loss": math.log1p(math.exp(-2)) + math.log1p(math.exp(0.5)),
            "rewards/chosen": 0.5 * (3 + 1),
            "rewards/rejected": 0.5 * (-1 + 2),
            "rewards/margins": 0.5 * (4 - 1),
            "rewards/accuracies": 1.0,
        },
        rel=1e-15,
    )
    assert loss.item() == seen["actor/dpo_loss"].total.item()
