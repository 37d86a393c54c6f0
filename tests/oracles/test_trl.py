"""Against TRL 1.16, in float64: the same value and the same gradient, or the difference is named in test_trl_differs.

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
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.spec.algorithm import Batch, Output

SHAPES = [(4, 4, 9), (3, 8, 24), (16, 2, 40)]  # P prompts, G answers, T tokens
CASES = [(seed, shape, holes) for seed in range(2) for shape in SHAPES for holes in (False, True)]
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
    told = {"loss_type": kind, "delta": delta, "beta": beta, "epsilon_high": 0.28, "max_completion_length": 40}
    name = f"GRPO loss, {kind}{', delta' if delta else ''}{', KL' if beta else ''}"
    agree(name, "TRL", lambda at: mean_loss(algorithm, at, wide), lambda at: trl_grpo(at, wide, **told), at=logp)


@every_case
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_gspo_loss(drawn, agree, mean_loss, trl_grpo, seed, shape, holes, beta) -> None:
    logp, batch = drawn(seed, shape, holes)
    near = replace(batch, old=logp + 0.01 * (batch.old - logp))  # some answers inside the clip, some outside
    near = replace(near, advantage=torch.randn(len(batch), 1, dtype=torch.float64) * batch.mask)
    told = {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    agree(
        f"GSPO loss{', KL' if beta else ''}", "TRL",
        lambda at: mean_loss(GSPO(kl_loss_coef=beta), at, near),
        lambda at: trl_grpo(at, near, beta=beta, **told), at=logp,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "kind"), [(GRPO(), "grpo"), (DAPO(), "dapo"), (DrGRPO(loss_scale_factor=40.0), "dr_grpo")]
)
@pytest.mark.parametrize("seed", range(3))
def test_the_papers_defaults(drawn, agree, mean_loss, trl_grpo, algorithm, kind, seed) -> None:
    """Each class as it comes, its own advantage and its own clip, against TRL told the same clip."""
    logp, batch = drawn(seed, (3, 8, 24))
    made, _ = algorithm.prepare(batch, {})
    told = {"epsilon_high": algorithm.clip_ratio_high, "loss_type": kind, "max_completion_length": 40}
    name = f"{type(algorithm).__name__} as it comes"
    agree(name, "TRL", lambda at: mean_loss(algorithm, at, made), lambda at: trl_grpo(at, made, **told), at=logp)


@pytest.mark.parametrize("kind", ["dapo", "grpo"])
@pytest.mark.parametrize("parts", [2, 4])
def test_grpo_loss_in_micro_batches(drawn, agree, mean_loss, trl_grpo, kind, parts) -> None:
    logp, batch = drawn(5, (3, 8, 24))
    size, algorithm = len(batch) // parts, GRPO(loss_agg_mode=MODES[kind])

    def theirs(at: torch.Tensor) -> torch.Tensor:
        told = {"loss_type": kind, "accumulated": parts, "tokens": batch.mask.sum()}
        return sum(trl_grpo(x, b, **told) for x, b in zip(at.split(size), batch.split(size), strict=True))

    agree(f"GRPO loss, {kind}, micro-batches", "TRL", lambda at: mean_loss(algorithm, at, batch), theirs, at=logp)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_bonus(drawn, agree, trl_grpo, seed) -> None:
    logp, batch = drawn(seed, (3, 8, 24))
    algorithm = GRPO(entropy_coeff=0.02, loss_agg_mode="token-mean")

    def mine(at: torch.Tensor) -> torch.Tensor:
        # a square stands for an entropy: it depends on the policy
        return algorithm.loss(Output(at, at.square()), batch)[0] / algorithm.units(batch)

    def theirs(at: torch.Tensor) -> torch.Tensor:
        return trl_grpo(at, batch, loss_type="dapo", entropy=at.square(), entropy_coef=0.02)

    agree("entropy bonus, dapo", "TRL", mine, theirs, at=logp)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [True, False])
def test_grpo_advantage(monkeypatch, drawn, agree, trl_advantage, seed, scale) -> None:
    """With TRL's 1e-4 beside the std; ours is 1e-6, see test_trl_differs.

    It makes n / (n - 1) in float32, which holds 5 / 4 exactly.
    """
    monkeypatch.setattr("launcher.algorithms.ops.EPSILON", 1e-4)
    _, batch = drawn(seed, (6, 5, 9))
    batch = batch.rows(batch.group.argsort())  # TRL's groups stand together
    made, _ = GRPO(norm_adv_by_std_in_grpo=scale).prepare(batch, {})
    found = trl_advantage(batch.reward, 5, scale="group" if scale else "none")
    agree("GRPO advantage" if scale else "GRPO advantage, no std", "TRL", made.advantage, found[:, None] * batch.mask)


@pytest.mark.parametrize(("longest", "buffer"), [(20480, 4096), (100, 20), (7, 7), (16, 1)])
def test_overlong(agree, longest, buffer) -> None:
    lengths = [1, 5, 7, 8, 15, 16, 79, 80, 81, 90, 100, 101, 16384, 16385, 20479, 20480, 20481, 30000]
    mask = (torch.arange(30000) < torch.tensor(lengths)[:, None]).double()
    batch = Batch(mask, torch.tensor(lengths), mask, reward=0 * mask[:, 0])
    ours = DAPO(max_response_length=longest, overlong_buffer_len=buffer).shape_reward(batch)
    theirs = get_soft_overlong_punishment(longest, buffer)(completion_ids=[[0] * n for n in lengths])
    agree("DAPO overlong", "TRL", ours, torch.tensor(theirs, dtype=torch.float64))


# ---- pairs


def paired(drawn: Any, seed: int, shape: tuple[int, int, int], holes: bool = False) -> tuple[torch.Tensor, Batch]:
    """Pairs in no order; `reference` far enough from the policy that some margins are negative."""
    logp, batch = drawn(seed, (shape[0], 2, shape[2]), holes)
    preference = torch.tensor([1, -1]).repeat_interleave(shape[0])
    order = torch.randperm(len(batch))
    return logp[order], replace(batch, preference=preference).rows(order)


@every_case
@pytest.mark.parametrize(("ours", "theirs"), [({"loss_type": "sigmoid"}, "sigmoid"), ({"loss_type": "hinge"}, "hinge")])
def test_dpo_loss(drawn, agree, mean_loss, trl_dpo, seed, shape, holes, ours, theirs) -> None:
    logp, batch = paired(drawn, seed, shape, holes)
    agree(
        f"DPO loss, {theirs}", "TRL",
        lambda at: mean_loss(DPO(beta=0.3, **ours), at, batch),
        lambda at: trl_dpo(at, batch, loss_type=theirs, beta=0.3)[0], at=logp,
    )  # fmt: skip


@every_case
def test_ipo_is_length_normalised_there(drawn, agree, mean_loss, trl_dpo, seed, shape, holes) -> None:
    logp, batch = paired(drawn, seed, shape, holes)
    algorithm = DPO(beta=0.3, loss_type="ipo", length_normalised=True)
    agree(
        "DPO loss, ipo, length_normalised", "TRL",
        lambda at: mean_loss(algorithm, at, batch),
        lambda at: trl_dpo(at, batch, loss_type="ipo", beta=0.3)[0], at=logp,
    )  # fmt: skip


@every_case
def test_cdpo_is_aot_of_one_pair(drawn, agree, mean_loss, trl_dpo, seed, shape, holes) -> None:
    """TRL has cDPO only inside AOT, which sorts the batch first; nothing is sorted in a batch of one pair."""
    logp, batch = paired(drawn, seed, shape, holes)

    def theirs(at: torch.Tensor) -> torch.Tensor:
        pairs = [torch.nonzero(batch.group == g)[:, 0] for g in batch.group.unique()]
        told = {"loss_type": "aot", "beta": 0.3, "label_smoothing": 0.1}
        return sum(trl_dpo(at[pair], batch.rows(pair), **told)[0] for pair in pairs) / len(pairs)

    algorithm = DPO(beta=0.3, label_smoothing=0.1)
    agree("DPO loss, label smoothing", "TRL", lambda at: mean_loss(algorithm, at, batch), theirs, at=logp)


@every_case
def test_robust_dpo_is_made_of_ours(drawn, agree, mean_loss, trl_dpo, seed, shape, holes) -> None:
    """(1 - 2 e) robust = cDPO(e) - 2 e L(flipped), where the flipped loss is that of chosen and rejected exchanged."""
    logp, batch = paired(drawn, seed, shape, holes)
    flipped = replace(batch, preference=-batch.preference)

    def mine(at: torch.Tensor) -> torch.Tensor:
        smoothed = mean_loss(DPO(beta=0.3, label_smoothing=0.1), at, batch)
        return (smoothed - 0.2 * mean_loss(DPO(beta=0.3), at, flipped)) / 0.8

    def theirs(at: torch.Tensor) -> torch.Tensor:
        return trl_dpo(at, batch, loss_type="robust", beta=0.3, label_smoothing=0.1)[0]

    agree("DPO loss, robust from ours", "TRL", mine, theirs, at=logp)


@pytest.mark.parametrize("seed", range(3))
def test_what_dpo_reports(drawn, agree, trl_dpo, seed) -> None:
    logp, batch = paired(drawn, seed, (16, 2, 24))
    _, seen = DPO(beta=0.3).loss(Output(logp), batch)
    _, told = trl_dpo(logp, batch, loss_type="sigmoid", beta=0.3)
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"):
        agree(name, "TRL", seen[name].total / seen[name].count, told[name])
