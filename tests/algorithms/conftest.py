"""Steps that every algorithm can learn from, and what an engine would make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.algorithms.ppo import PPO
from launcher.algorithms.sft import SFT
from launcher.spec.algorithm import Algorithm, Batch, Largest, Output

torch.set_num_threads(1)

T = 9
ALGORITHMS: dict[str, Algorithm] = {
    "sft": SFT(),
    "sft, answers alike": SFT(loss_agg_mode="seq-mean-token-mean"),
    "dpo": DPO(),
    "dpo, ipo by length": DPO(loss_type="ipo", length_normalised=True),
    "ppo": PPO(kl_coef=0.0),
    "ppo, adaptive": PPO(kl_coef=0.3, kl_ctrl="adaptive", horizon=50, gamma=0.9, lam=0.8, entropy_coeff=0.1),
    "grpo": GRPO(),
    "grpo, everything": GRPO(
        clip_ratio_high=0.3, clip_ratio_c=1.5, kl_loss_coef=0.3, entropy_coeff=0.1, min_group_std=0.7
    ),
    "grpo, k1, sums": GRPO(kl_loss_coef=0.3, kl_loss_type="k1", loss_agg_mode="seq-mean-token-sum"),
    "dr_grpo": DrGRPO(loss_scale_factor=40.0),
    "dapo": DAPO(max_response_length=7, overlong_buffer_len=4, kl_loss_coef=0.1, kl_loss_type="k2"),
    "gspo": GSPO(clip_ratio_low=0.2, clip_ratio_high=0.2, entropy_coeff=0.1),
    "gspo_selfplay": GSPOSelfPlay(pair_weight=0.3, label_smoothing=0.1, kl_loss_coef=0.2),
}
Pulled = tuple[Tensor, Tensor, dict[str, tuple[float, float]]]


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    return ALGORITHMS[request.param]


@pytest.fixture(params=[name for name, one in ALGORITHMS.items() if isinstance(one, GRPO | PPO)])
def clipping(request: pytest.FixtureRequest) -> Algorithm:
    """Those whose loss is a clipped ratio times an advantage."""
    return ALGORITHMS[request.param]


def _drawn(algorithm: Algorithm, seed: int = 0) -> tuple[Tensor, Batch]:
    """Log-probabilities [B, T] now, and a step of 8 groups that is not prepared, in no order.

    Groups of pairs have two rows, groups of sampled answers four; `mixed` is half of each.
    """
    torch.manual_seed(seed)
    pairs = {"pairs": 8, "mixed": 4}.get(algorithm.data, 0)
    sizes = torch.tensor([2] * pairs + [4] * (8 - pairs))
    group = torch.arange(8).repeat_interleave(sizes)
    sign = torch.tensor([1, -1]).repeat(pairs)
    preference = torch.cat([sign, torch.zeros(len(group) - len(sign), dtype=torch.long)])
    rows, order = len(group), torch.randperm(len(group))
    answer, prompt = torch.randint(1, 7, (rows,)), torch.randint(1, 3, (rows,))
    place = torch.arange(T).expand(rows, T)
    mask = ((place >= prompt[:, None]) & (place < (prompt + answer)[:, None])).double()
    noise = [torch.randn(rows, T, dtype=torch.float64) * mask for _ in range(4)]
    reward = torch.rand(rows, dtype=torch.float64) + 3 * torch.randint(0, 2, (rows,))
    reward[group == 7] = 0.7  # nothing to learn here
    new, batch = -noise[0].abs(), Batch(torch.zeros(rows, T, dtype=torch.long), prompt + answer, mask, group)
    batch = replace(
        batch, preference=preference, old=new + 0.3 * noise[1], reference=new + 0.3 * noise[2],
        value=noise[3], reward=reward,
    )  # fmt: skip
    return new[order], batch.rows(order)


def _pulled(algorithm: Algorithm, new: Tensor, made: Batch, parts: Iterable[Tensor] | None = None) -> Pulled:
    """The step's loss, its gradient [B, T], and what it reports, out of `parts`: the rows of each micro-batch.

    As an engine does it: sums are added up, and divided by the units of the whole step.
    """
    parts = [torch.arange(len(made))] if parts is None else parts
    at = new.clone().requires_grad_()
    units, tokens = sum(algorithm.units(made.rows(part)) for part in parts), made.mask.sum()
    loss, seen = torch.zeros((), dtype=torch.float64), dict[str, tuple[float, float]]()
    for part in parts:
        rows = made.rows(part)
        here = at[part] * rows.mask
        found = [(algorithm.loss(Output(here, here.square()), rows), units)]  # a square stands for an entropy
        if "critic" in algorithm.needs:
            found.append((algorithm.value_loss(rows.value + here, rows), tokens))
        for (total, reported), divisor in found:
            loss = loss + total / divisor
            for name, metric in reported.items():
                if isinstance(metric, Largest):
                    seen[name] = max(seen.get(name, (-math.inf, 0.0))[0], float(metric.value)), 1.0
                else:
                    before = seen.get(name, (0.0, 0.0))
                    seen[name] = before[0] + float(metric.total), before[1] + float(metric.count)
    (gradient,) = torch.autograd.grad(loss, at)
    return loss.detach(), gradient, seen


@pytest.fixture(scope="session")
def drawn() -> Callable[..., tuple[Tensor, Batch]]:
    return _drawn


@pytest.fixture(scope="session")
def pulled() -> Callable[..., Pulled]:
    return _pulled
