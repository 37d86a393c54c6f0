"""What learns from given answers: SFT and DPO against numbers made by hand, and pairs beside sampled answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from launcher.algorithms.dpo import DPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.algorithms.sft import SFT
from launcher.spec.algorithm import Batch, Output

LN2 = math.log(2)


@pytest.mark.parametrize(
    ("mode", "loss", "units"),
    [
        ("token-mean", 8.0, 4.0),  # 1 + 1 + 1 + 5, so the mean is 8 / 4
        ("seq-mean-token-mean", 6.0, 2.0),  # 3 / 3 + 5 / 1; the answer without tokens is none
    ],
)
def test_sft_by_hand(mode: Any, loss: float, units: float) -> None:
    logp = torch.tensor([[-9, -1, -1, -1], [0, -5, -7, 0], [0, 0, 0, -3]], dtype=torch.float64)
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    algorithm, batch = SFT(loss_agg_mode=mode), Batch(torch.zeros(3, 4).long(), torch.full((3,), 4), mask)
    found, seen = algorithm.loss(Output(logp), batch)
    assert (found.item(), algorithm.units(batch).item()) == (pytest.approx(loss, rel=1e-15), units)
    assert {name: (mean.total.item(), mean.count.item()) for name, mean in seen.items()} == {
        "train/loss": (found.item(), units)
    }


# ---- pairs


def pair(chosen: list[float], rejected: list[float]) -> tuple[Output, Batch]:
    """A pair by its tokens' log-ratios to the reference, whose log-probabilities are -1; the rejected answer first."""
    columns = max(len(chosen), len(rejected))
    lengths = torch.tensor([len(rejected), len(chosen)])
    mask = (torch.arange(columns) < lengths[:, None]).double()
    ratios = [[*row, *[0.0] * (columns - len(row))] for row in (rejected, chosen)]
    logp = (torch.tensor(ratios, dtype=torch.float64) - 1) * mask
    group, preference = torch.tensor([4, 4]), torch.tensor([-1, 1])
    return Output(logp), Batch(mask, lengths, mask, group=group, preference=preference, reference=-mask)


@pytest.mark.parametrize(
    ("options", "chosen", "rejected", "expected"),
    [
        # h = (1 + 2) - (-1) = 4; beta h = 0.4
        ({}, [1.0, 2.0], [-1.0], math.log1p(math.exp(-0.4))),
        ({"beta": 1.0}, [1.0, 2.0], [-1.0], math.log1p(math.exp(-4))),
        # h = -4: the wrong way round
        ({}, [-1.0], [1.0, 2.0], math.log1p(math.exp(0.4))),
        # what both gained alike counts nothing
        ({}, [5.0], [2.0, 3.0], LN2),
        # a sum is not moved by rounding far out
        ({"beta": 1.0}, [900.0], [0.0], 0.0),
        ({"beta": 1.0}, [0.0], [900.0], 900.0),
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
def test_dpo_by_hand(options: dict[str, Any], chosen: list[float], rejected: list[float], expected: float) -> None:
    new, batch = pair(chosen, rejected)
    assert DPO(**options).units(batch).item() == 1  # one pair
    assert DPO(**options).loss(new, batch)[0].item() == pytest.approx(expected, rel=1e-14, abs=1e-15)


def test_what_dpo_reports() -> None:
    """Two pairs: the first with margin 4 in the right order, the second with -1 in the wrong one; beta is 0.5."""
    mask = torch.ones(4, 1, dtype=torch.float64)
    logp = torch.tensor([[3.0], [-1.0], [2.0], [1.0]], dtype=torch.float64)
    group, preference = torch.tensor([0, 0, 1, 1]), torch.tensor([1, -1, -1, 1])
    batch = Batch(mask, mask[:, 0], mask, group=group, preference=preference, reference=0 * mask)
    loss, seen = DPO(beta=0.5).loss(Output(logp), batch)
    assert DPO().units(batch).item() == 2
    assert all(mean.count.item() == 2 for mean in seen.values())
    assert {name: mean.total.item() for name, mean in seen.items()} == {
        "actor/dpo_loss": loss.item(),
        "rewards/chosen": 0.5 * (3 + 1),
        "rewards/rejected": 0.5 * (-1 + 2),
        "rewards/margins": 0.5 * (4 - 1),
        "rewards/accuracies": 1.0,
    }
    assert loss.item() == pytest.approx(math.log1p(math.exp(-2)) + math.log1p(math.exp(0.5)), rel=1e-15)


# ---- pairs and prompts in one step


@pytest.mark.parametrize(("seed", "weight"), [(0, 0.25), (1, 5.0)])
def test_mixed_it_is_the_weighted_mean(seed: int, weight: float, drawn: Any, pulled: Any) -> None:
    """(N_answers GSPO + w N_pairs DPO) / (N_answers + w N_pairs), where each alone is a mean."""
    settings = {"kl_loss_coef": 0.2, "clip_ratio_c": 3.0, "entropy_coeff": 0.1}
    ours = GSPOSelfPlay(**settings, beta=0.3, label_smoothing=0.1, pair_weight=weight)
    new, batch = drawn(ours, seed)
    sampled, pairs = batch.preference == 0, batch.preference != 0
    answers, count = sampled.sum().item(), pairs.sum().item() // 2
    rows = ((ours, sampled | pairs), (GSPO(**settings), sampled), (DPO(beta=0.3, label_smoothing=0.1), pairs))
    (loss, gradient, seen), gspo, dpo = (
        pulled(algorithm, new[part], algorithm.prepare(batch.rows(part), {})[0]) for algorithm, part in rows
    )
    units = answers + weight * count
    expected = (answers * gspo[0] + weight * count * dpo[0]) / units
    assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    assert (gradient[sampled] - answers / units * gspo[1]).abs().max() <= 1e-15
    assert (gradient[pairs] - weight * count / units * dpo[1]).abs().max() <= 1e-15
    assert seen == gspo[2] | dpo[2]  # each reported as it is alone, unweighed


def test_pairs_are_kept_whatever_their_reward(drawn: Any) -> None:
    algorithm = GSPOSelfPlay(min_group_std=0.5)
    _, batch = drawn(algorithm)
    dull = replace(batch, reward=torch.ones(len(batch), dtype=torch.float64))
    assert torch.equal(algorithm.group_filter(dull), batch.preference != 0)
    made, state = algorithm.prepare(dull, {})
    assert algorithm.units(made).item() == state["train/groups_filtered"] == 4
