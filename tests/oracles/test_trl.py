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
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.spec.algorithm import Batch, Output

CASES = [(0, (4, 4, 9), False), (1, (16, 2, 40), True)]  # seed; P prompts, G answers, T tokens; holes in answers
every_case = pytest.mark.parametrize(("seed", "shape", "holes"), CASES)
MODES = {
    "grpo": "seq-mean-token-mean",
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


# ---- sampled answers


@every_case
@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("delta", [None, 3.0])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_loss(drawn, agree, mean_loss, trl_grpo, seed, shape, holes, kind, delta, beta) -> None:
    logp, batch = drawn(seed, shape, holes)
    wide = replace(batch, old=batch.old - 0.5 * batch.mask)  # ratios that a dual clip at 3 reaches
    algorithm = GRPO(
        clip_ratio_high=0.28,
        clip_ratio_c=delta,
        kl_loss_coef=beta,
        loss_agg_mode=MODES[kind],
        loss_scale_factor=40.0 if "norm" in MODES[kind] else None,
    )
    options = {"loss_type": kind, "delta": delta, "beta": beta, "epsilon_high": 0.28, "max_completion_length": 40}
    agree(lambda at: mean_loss(algorithm, at, wide), lambda at: trl_grpo(at, wide, **options), at=logp)


@every_case
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_gspo_loss(drawn, agree, mean_loss, trl_grpo, seed, shape, holes, beta) -> None:
    logp, batch = drawn(seed, shape, holes)
    near = replace(batch, old=logp + 0.01 * (batch.old - logp))  # some answers inside the clip, some outside
    near = replace(near, advantage=torch.randn(len(batch), 1, dtype=torch.float64) * batch.mask)
    options = {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    algorithm = GSPO(kl_loss_coef=beta)
    agree(lambda at: mean_loss(algorithm, at, near), lambda at: trl_grpo(at, near, beta=beta, **options), at=logp)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [True, False])
def test_grpo_advantage(monkeypatch, drawn, agree, trl_advantage, seed, scale) -> None:
    """With TRL's 1e-4 beside the std; ours is 1e-6.

    It makes n / (n - 1) in float32, which holds 5 / 4 exactly.
    """
    monkeypatch.setattr("launcher.algorithms.ops.EPSILON", 1e-4)
    _, batch = drawn(seed, (6, 5, 9))
    batch = batch.rows(batch.group.argsort())  # TRL's groups stand together
    made, _ = GRPO(norm_adv_by_std_in_grpo=scale).prepare(batch, {})
    found = trl_advantage(batch.reward, 5, scale="group" if scale else "none")
    agree(made.advantage, found[:, None] * batch.mask)


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
