"""GRPO against hand-made numbers and against the paper's eq. 3 and 4, written out in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.spec.algorithm import Batch, Output

B, T, G = 8, 7, 4


def drawn(seed: int = 0) -> tuple[Tensor, Batch]:
    """Log-probabilities [B, T] now, and a prepared batch of two groups with answers of 1 to 5 tokens."""
    torch.manual_seed(seed)
    answer, prompt = torch.tensor([1, 5, 2, 3, 4, 1, 5, 2]), torch.tensor([2, 2, 2, 2, 1, 1, 1, 1])
    place = torch.arange(T).expand(B, T)
    mask = ((place >= prompt[:, None]) & (place < (prompt + answer)[:, None])).double()
    new = -torch.rand(B, T, dtype=torch.float64) * mask
    batch = Batch(
        tokens=torch.zeros(B, T, dtype=torch.long),
        length=prompt + answer,
        mask=mask,
        group=torch.arange(B) // G,
        old=new + 0.5 * torch.randn(B, T, dtype=torch.float64) * mask,  # ratios far enough from 1 to be clipped
        reference=new + 0.3 * torch.randn(B, T, dtype=torch.float64) * mask,
        reward=torch.rand(B, dtype=torch.float64),
    )
    return new, GRPO().prepare(batch, {})[0]


def mean_loss(algorithm: GRPO, logp: Tensor, batch: Batch) -> Tensor:
    return algorithm.loss(Output(logp), batch)[0] / algorithm.units(batch)


# ---- the paper, word for word


def paper_objective(
    new: Sequence[Sequence[float]],  # pi_theta of each answer's tokens, as log
    old: Sequence[Sequence[float]],
    reference: Sequence[Sequence[float]],
    reward: Sequence[float],
    group_size: int,
    epsilon: float,
    beta: float,
) -> float:
    """J(theta): eq. 3 with outcome supervision, the mean over questions; its KL is eq. 4."""
    questions = []
    for first in range(0, len(new), group_size):
        group = range(first, first + group_size)
        r = [reward[i] for i in group]
        mean, std = statistics.fmean(r), statistics.stdev(r) + 1e-6
        total = 0.0
        for i in group:
            a = (reward[i] - mean) / std
            answer = 0.0
            for t in range(len(new[i])):
                ratio = math.exp(new[i][t]) / math.exp(old[i][t])
                clip = min(max(ratio, 1 - epsilon), 1 + epsilon)
                to_reference = math.exp(reference[i][t]) / math.exp(new[i][t])
                kl = to_reference - math.log(to_reference) - 1
                answer += min(ratio * a, clip * a) - beta * kl
            total += answer / len(new[i])
        questions.append(total / group_size)
    return statistics.fmean(questions)


def answers_of(values: Tensor, batch: Batch) -> list[list[float]]:
    return [row[mask > 0].tolist() for row, mask in zip(values, batch.mask, strict=True)]


def paper(new: Tensor, batch: Batch, epsilon: float, beta: float) -> float:
    held = [answers_of(values, batch) for values in (new, batch.old, batch.reference)]
    return paper_objective(held[0], held[1], held[2], batch.reward.tolist(), G, epsilon, beta)


@pytest.mark.parametrize(("seed", "beta"), [(0, 0.0), (1, 0.04)])
def test_the_loss_is_the_papers_objective_turned_over(seed: int, beta: float) -> None:
    new, batch = drawn(seed)
    found = mean_loss(GRPO(kl_loss_coef=beta), new, batch)
    assert found.item() == pytest.approx(-paper(new, batch, 0.2, beta), rel=1e-13)


# ---- groups


# std is 1 in the first group, sqrt(1/2) = 0.707... in the second, 0 in the third
HALF_ROOT = torch.tensor(0.5, dtype=torch.float64).sqrt().item()  # its last bit differs between CPUs
SPREAD = {"group": torch.tensor([0, 0, 0, 1, 1, 2, 2]), "reward": [1.0, 2.0, 3.0, 0.0, 1.0, 5.0, 5.0]}


@pytest.mark.parametrize(
    ("least", "kept", "told"),
    [
        (0.0, [1, 1, 1, 1, 1, 1, 1], None),  # nothing is ever left out, so nothing is told
        (HALF_ROOT, [1, 1, 1, 1, 1, 0, 0], (2, 1, 5 / 7)),  # at the edge a group is kept: strictly less leaves
        (math.nextafter(HALF_ROOT, 1), [1, 1, 1, 0, 0, 0, 0], (1, 2, 3 / 7)),
        (math.nextafter(1.0, 2), [0] * 7, (0, 3, 0)),
    ],
)
def test_groups_that_spread_less_are_left_out(least: float, kept: list[int], told: tuple | None) -> None:
    mask = torch.ones(7, 1, dtype=torch.float64)
    reward = torch.tensor(SPREAD["reward"], dtype=torch.float64)
    batch = Batch(mask, mask[:, 0], mask, group=SPREAD["group"], reward=reward)
    made, found = GRPO(min_group_std=least).prepare(batch, {})
    assert made.mask[:, 0].tolist() == kept
    assert (made.advantage[made.mask == 0] == 0).all()
    assert GRPO().units(made).item() == sum(kept)
    names = ("train/groups_kept", "train/groups_filtered", "train/trainable_token_share")
    assert found == ({} if told is None else dict(zip(names, told, strict=True)))


def test_what_has_no_score_is_in_no_group_that_is_counted() -> None:
    mask = torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64)  # two faults, each in a group of its own
    batch = Batch(mask, mask[:, 0], mask, group=torch.tensor([0, 0, -3, -4]), reward=torch.tensor([0.0, 1.0, 0.0, 0.0]))
    _, found = GRPO(min_group_std=0.1).prepare(batch, {})
    assert found == {"train/groups_kept": 1.0, "train/groups_filtered": 0.0, "train/trainable_token_share": 1.0}


@pytest.mark.parametrize("scale", [True, False])
def test_a_group_that_is_all_equal_has_exactly_zero(scale: bool) -> None:
    """The float32 mean of 7 x 1000.1 is another number."""
    reward = torch.tensor([1000.1] * 7 + [1.0, 2.0], dtype=torch.float32)  # a second group that does differ
    found = ops.group_advantage(reward, torch.tensor([0] * 7 + [1, 1]), scale)
    assert found[:-2].tolist() == [0.0] * 7
    assert (found[-2:] != 0).all()


# ---- settings


def test_the_entropy_bonus_adds_up_as_the_rest_does() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.float64)
    entropy = torch.tensor([[1, 2, 3], [4, 0, 0]], dtype=torch.float64)
    batch = Batch(mask, torch.tensor([3, 1]), mask, old=0 * mask, advantage=0 * mask)
    means = {
        "token-mean": 10 / 4,  # (1 + 2 + 3 + 4) / 4
        "seq-mean-token-mean": 6 / 2,  # (2 + 4) / 2
        "seq-mean-token-sum": 10 / 2,  # (6 + 4) / 2
        "seq-mean-token-sum-norm": 10 / 2 / 8,
    }
    for mode, mean in means.items():
        algorithm = GRPO(entropy_coeff=0.5, loss_agg_mode=mode, loss_scale_factor=8.0 if "norm" in mode else None)
        loss, _ = algorithm.loss(Output(0 * mask, entropy), batch)
        assert (loss / algorithm.units(batch)).item() == pytest.approx(-0.5 * mean, rel=1e-15)


def test_dr_grpo_by_hand() -> None:
    """Rewards 0 and 4: advantages -2 and 2, no std. Answers of 3 and 1 tokens: (2 x 3 - 2 x 1) / 8, over 2 answers."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.float64)
    reward = torch.tensor([0.0, 4.0], dtype=torch.float64)
    batch = Batch(mask, torch.tensor([3, 1]), mask, group=torch.zeros(2).long(), reward=reward, old=0 * mask)
    algorithm = DrGRPO(loss_scale_factor=8.0)
    made, _ = algorithm.prepare(batch, {})
    assert made.advantage.tolist() == [[-2, -2, -2], [2, 0, 0]]
    assert mean_loss(algorithm, 0 * mask, made).item() == (2 * 3 - 2 * 1) / 8 / 2
