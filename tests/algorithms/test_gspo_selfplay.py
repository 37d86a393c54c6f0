"""Pairs and prompts in one step: with only the one or the other, DPO or GSPO to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from launcher.algorithms.dpo import DPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.spec.algorithm import Algorithm, Batch, Output

SETTINGS = {"kl_loss_coef": 0.2, "clip_ratio_c": 3.0, "entropy_coeff": 0.1}
PAIRS, SAMPLED, G, T = 5, 3, 4, 6


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Batch]:
    """Five pairs and three groups of four sampled answers, in no order."""
    torch.manual_seed(seed)
    rows = 2 * PAIRS + SAMPLED * G
    group = torch.cat([torch.arange(PAIRS).repeat(2), PAIRS + torch.arange(SAMPLED).repeat_interleave(G)])
    preference = torch.tensor([1] * PAIRS + [-1] * PAIRS + [0] * SAMPLED * G)
    length = torch.randint(1, T + 1, (rows,))
    mask = (torch.arange(T) < length[:, None]).to(dtype)
    new, noise = -torch.rand(rows, T, dtype=dtype) * mask, 0.01 * torch.randn(rows, T, dtype=dtype) * mask
    batch = Batch(
        torch.zeros(rows, T).long(), length, mask, group=group, preference=preference, old=new + noise,
        reference=new + 30 * noise, reward=torch.rand(rows, dtype=dtype) * (1 + 2 * (group % 3)),
    )  # fmt: skip
    order = torch.randperm(rows)
    return new[order], batch.rows(order)


def found(algorithm: Algorithm, new: Tensor, batch: Batch) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    """Loss and gradient over units, and what is reported."""
    made, _ = algorithm.prepare(batch, {})
    at = new.clone().requires_grad_()
    total, seen = algorithm.loss(Output(at, at.square()), made)
    loss = total / algorithm.units(made)
    loss.backward()
    assert at.grad is not None and at.grad.abs().max() > 0
    return loss.detach(), at.grad, {name: [float(x) for x in mean] for name, mean in seen.items()}


@pytest.mark.parametrize(("seed", "weight"), [(0, 0.3), (1, 5.0)])
def test_mixed_it_is_the_weighted_mean(seed: int, weight: float) -> None:
    """(N_answers GSPO + w N_pairs DPO) / (N_answers + w N_pairs), where each alone is a mean."""
    new, batch = drawn(seed)
    sampled, pairs = batch.preference == 0, batch.preference != 0
    ours = GSPOSelfPlay(**SETTINGS, beta=0.3, label_smoothing=0.1, pair_weight=weight)
    loss, gradient, seen = found(ours, new, batch)
    gspo = found(GSPO(**SETTINGS), new[sampled], batch.rows(sampled))
    dpo = found(DPO(beta=0.3, label_smoothing=0.1), new[pairs], batch.rows(pairs))
    answers, units = SAMPLED * G, SAMPLED * G + weight * PAIRS
    expected = (answers * gspo[0] + weight * PAIRS * dpo[0]) / units
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    assert (gradient[sampled] - answers / units * gspo[1]).abs().max() <= 1e-15
    assert (gradient[pairs] - weight * PAIRS / units * dpo[1]).abs().max() <= 1e-15
    assert seen == gspo[2] | dpo[2]  # each reported as it is alone, unweighed


def test_pairs_are_kept_whatever_their_reward() -> None:
    _, batch = drawn(0)
    dull = replace(batch, reward=torch.ones(len(batch), dtype=torch.float64))
    algorithm = GSPOSelfPlay(min_group_std=0.5)
    assert torch.equal(algorithm.group_filter(dull), batch.preference != 0)
    made, told = algorithm.prepare(dull, {})
    assert algorithm.units(made).item() == PAIRS
    assert told["train/groups_filtered"] == SAMPLED
