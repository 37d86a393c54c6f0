"""Supervised fine-tuning: a plain negative log-likelihood, summed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from launcher.algorithms.sft import SFT
from launcher.spec.algorithm import Batch, Output


def batch_of(mask: Tensor, tokens: Tensor | None = None) -> Batch:
    rows, columns = mask.shape
    tokens = torch.zeros(rows, columns, dtype=torch.long) if tokens is None else tokens
    return Batch(tokens, torch.full((rows,), columns), mask)


def test_by_hand() -> None:
    logp = torch.tensor([[0.0, -1.0, -2.0, -4.0], [0.0, -8.0, -16.0, -32.0]], dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 0, 0]], dtype=torch.float64)
    loss, seen = SFT().loss(Output(logp), batch_of(mask))
    assert loss.item() == 14.0  # 2 + 4 + 8
    assert SFT().units(batch_of(mask)).item() == 3.0  # tokens, so the mean is 14 / 3
    assert {name: (mean.total.item(), mean.count.item()) for name, mean in seen.items()} == {"train/loss": (14.0, 3.0)}


def test_each_answer_may_count_as_one() -> None:
    logp = torch.tensor([[0, -1, -1, -1], [0, -5, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    algorithm, batch = SFT(loss_agg_mode="seq-mean-token-mean"), batch_of(mask)
    loss, seen = algorithm.loss(Output(logp), batch)
    assert (loss / algorithm.units(batch)).item() == pytest.approx(3.0, rel=1e-15)  # (3 / 3 + 5 / 1) / 2
    assert seen["train/loss"].count.item() == 2.0  # the answer without tokens is none
