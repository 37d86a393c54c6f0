"""GSPO against hand-made numbers and the paper's eq. 5 and 7, written out in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from launcher.algorithms.gspo import GSPO
from launcher.spec.algorithm import Batch, Output


def batch_of(mask: Tensor, old: Tensor, advantage: Tensor) -> Batch:
    return Batch(mask, mask.sum(1), mask, old=old, advantage=advantage[:, None] * mask)


@pytest.mark.parametrize(
    ("new", "advantage", "loss", "gradient"),
    [
        # two tokens; s = exp(mean), and a token's pull is A s / 2 where nothing is clipped
        ([0.2, -0.2], 1.0, -1.0, -1 / 2),  # each ratio is far from 1, the answer's is 1
        ([2e-4, 4e-4], 1.0, -math.exp(3e-4), -math.exp(3e-4) / 2),
        ([0.1, 0.3], 1.0, -1.0004, 0.0),  # s = e^0.2: wanted, and already up
        ([0.1, 0.3], -1.0, math.exp(0.2), math.exp(0.2) / 2),  # unwanted, but rose: full push
        ([-0.1, -0.3], -1.0, 0.9997, 0.0),  # unwanted, and already down
        ([-0.1, -0.3], 1.0, -math.exp(-0.2), -math.exp(-0.2) / 2),
    ],
)
def test_by_hand(new: list[float], advantage: float, loss: float, gradient: float) -> None:
    mask = torch.ones(1, 2, dtype=torch.float64)
    at = torch.tensor([new], dtype=torch.float64).requires_grad_()
    batch = batch_of(mask, 0 * mask, torch.tensor([advantage], dtype=torch.float64))
    found, seen = GSPO().loss(Output(at), batch)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-15)
    assert at.grad is not None
    assert at.grad[0].tolist() == pytest.approx([gradient] * 2, rel=1e-14, abs=1e-15)
    assert seen["actor/pg_clipfrac"].total.item() == (2 if gradient == 0 else 0)  # a whole answer, or none of it
