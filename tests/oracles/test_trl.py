"""Against TRL 1.16, in float64: the same value and the same gradient. docs/algorithms.md names where we differ.

Its losses are methods of trainers; here they are called with a stand-in that holds the few attributes they read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("trl")
import torch
from trl.rewards import get_soft_overlong_punishment

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.spec.algorithm import Batch, Output

CASES = [(0, (4, 4, 9), False), (1, (16, 2, 40), True)]  # seed; P prompts, G answers, T tokens; holes in answers
every_case = pytest.mark.parametrize(("seed", "shape", "holes"), CASES)
# ---- sampled answers


@pytest.mark.parametrize(("longest", "buffer"), [(20480, 4096), (100, 20), (7, 7), (16, 1)])
def test_overlong(agree, longest, buffer) -> None:
    lengths = [1, 5, 7, 8, 15, 16, 79, 80, 81, 90, 100, 101, 16384, 16385, 20479, 20480, 20481, 30000]
    mask = (torch.arange(30000) < torch.tensor(lengths)[:, None]).double()
    batch = Batch(mask, torch.tensor(lengths), mask, reward=0 * mask[:, 0])
    ours = DAPO(max_response_length=longest, overlong_buffer_len=buffer).shape_reward(batch)
    theirs = get_soft_overlong_punishment(longest, buffer)(completion_ids=[[0] * n for n in lengths])
    agree(ours, torch.tensor(theirs, dtype=torch.float64))


# ---- pairs


def paired(drawn: Any, seed: int, shape: tuple[int, int, int], holes: bool = False) -> tuple[torch.Tensor, Batch]:
    """Pairs in no order; `reference` far enough from the policy that some margins are negative."""
    logp, batch = drawn(seed, (shape[0], 2, shape[2]), holes)
    preference = torch.tensor([1, -1]).repeat_interleave(shape[0])
    order = torch.randperm(len(batch))
    return logp[order], replace(batch, preference=preference).rows(order)


@every_case
@pytest.mark.parametrize("ours", [{}, {"loss_type": "hinge"}, {"loss_type": "ipo", "length_normalised": True}], ids=str)
def test_dpo_loss(drawn, agree, mean_loss, trl_dpo, seed, shape, holes, ours) -> None:
    logp, batch = paired(drawn, seed, shape, holes)
    algorithm = DPO(beta=0.3, **ours)
    agree(
        lambda at: mean_loss(algorithm, at, batch),
        lambda at: trl_dpo(at, batch, loss_type=algorithm.loss_type, beta=0.3)[0],
        at=logp,
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_dpo_reports(drawn, agree, trl_dpo, seed) -> None:
    logp, batch = paired(drawn, seed, (16, 2, 24))
    _, seen = DPO(beta=0.3).loss(Output(logp), batch)
    _, metrics = trl_dpo(logp, batch, loss_type="sigmoid", beta=0.3)
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"):
        agree(seen[name].total / seen[name].count, metrics[name])
