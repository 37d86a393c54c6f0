"""GRPO and its kin: against the paper's eq. 3 and 4, written out in plain Python, and against numbers made by hand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.algorithms import ops
from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.spec.algorithm import Batch, Output

F64 = torch.float64


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=F64)


def batch_of(lengths: list[int], group: list[int] | None = None, reward: Any = None, **more: Tensor) -> Batch:
    """Answers of these lengths, without prompts, of a policy that was certain of each token."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).double()
    grouped = {} if group is None else {"group": torch.tensor(group), "reward": f64(*reward)}
    return Batch(mask, torch.tensor(lengths), mask, **{"old": 0 * mask, **grouped, **more})


def mean_loss(algorithm: GRPO, logp: Tensor, batch: Batch) -> float:
    return (algorithm.loss(Output(logp), batch)[0] / algorithm.units(batch)).item()


# ---- the paper, word for word


def paper_objective(new: Tensor, batch: Batch, epsilon: float, beta: float) -> float:
    """J(theta): eq. 3 with outcome supervision, the mean over questions; its KL is eq. 4."""
    questions = []
    for question in batch.group.unique():
        group = (batch.group == question).nonzero()[:, 0].tolist()
        r = [batch.reward[i].item() for i in group]
        mean, std = statistics.fmean(r), statistics.stdev(r) + 1e-6
        answers = []
        for i in group:
            a, answer = (batch.reward[i].item() - mean) / std, []
            for t in batch.mask[i].nonzero()[:, 0].tolist():
                pi, old, reference = (math.exp(logp[i, t]) for logp in (new, batch.old, batch.reference))
                ratio, to_reference = pi / old, reference / pi
                clip = min(max(ratio, 1 - epsilon), 1 + epsilon)
                kl = to_reference - math.log(to_reference) - 1
                answer.append(min(ratio * a, clip * a) - beta * kl)
            answers.append(statistics.fmean(answer))
        questions.append(statistics.fmean(answers))
    return statistics.fmean(questions)


@pytest.mark.parametrize(("seed", "beta"), [(0, 0.0), (1, 0.04)])
def test_the_loss_is_the_papers_objective_turned_over(seed: int, beta: float, drawn: Any) -> None:
    algorithm = GRPO(kl_loss_coef=beta)
    new, batch = drawn(algorithm, seed)
    found = mean_loss(algorithm, new, algorithm.prepare(batch, {})[0])
    assert found == pytest.approx(-paper_objective(new, batch, 0.2, beta), rel=1e-12)


# ---- its parts


def test_the_surrogate_counts_which_clip_made_a_difference() -> None:
    ratio, mask = f64([1.5, 0.5, 4.0, 1.1, 9.0]), f64([1, 1, 1, 1, 0])
    batch = Batch(mask, f64(5), mask, advantage=f64([1, -1, -1, 1, 1]) * mask)
    loss, seen = ops.surrogate_loss(ratio, ratio.log(), batch, 0.2, 0.28, 3.0)
    assert loss[0].tolist() == pytest.approx([-1.28, 0.8, 3.0, -1.1, 0.0], abs=1e-15)
    metrics = {name: (mean.total.item(), mean.count.item()) for name, mean in seen.items()}
    assert metrics == {
        "actor/pg_clipfrac": (2.0, 4.0),  # the first two
        "actor/pg_clipfrac_lower": (1.0, 4.0),  # the third
        "actor/ppo_kl": (pytest.approx(-math.log(1.5 * 0.5 * 4 * 1.1), abs=1e-15), 4.0),
    }
    assert set(ops.surrogate_loss(ratio, ratio.log(), batch, 0.2, 0.28, None)[1]) == set(metrics) - {
        "actor/pg_clipfrac_lower"
    }


@pytest.mark.parametrize(
    ("kind", "logp", "reference", "expected", "gradient"),
    [
        ("k1", -2.0, -1.0, -1.0, 1.0),  # may be negative
        ("k2", -1.0, -2.0, 0.5, 1.0),  # r^2 / 2, gradient -r
        ("k2", -2.0, -0.5, 1.125, -1.5),
        ("k3", -1.0, -2.0, math.exp(-1), 1 - math.exp(-1)),  # gradient 1 - e^r
        ("k3", -25.0, 0.0, math.exp(25) - 26, 1 - math.exp(25)),  # nothing is cut off
    ],
)
def test_kl(kind: ops.Estimator, logp: float, reference: float, expected: float, gradient: float) -> None:
    x = f64(logp).requires_grad_()
    found = ops.KL[kind](x, f64(reference))
    found.sum().backward()
    assert x.grad is not None
    assert [found.item(), x.grad.item()] == pytest.approx([expected, gradient], rel=1e-15)


@pytest.mark.parametrize(
    ("mode", "mean"),
    [
        ("token-mean", 10 / 4),  # (1 + 2 + 3 + 4) / 4
        ("seq-mean-token-mean", 6 / 2),  # (2 + 4) / 2
        ("seq-mean-token-sum", 10 / 2),  # (6 + 4) / 2
        ("seq-mean-token-sum-norm", 10 / 2 / 8),
    ],
)
def test_the_entropy_bonus_adds_up_as_the_rest_does(mode: ops.Aggregation, mean: float) -> None:
    batch = batch_of([3, 1], advantage=torch.zeros(2, 3, dtype=F64))
    algorithm = GRPO(entropy_coeff=0.5, loss_agg_mode=mode, loss_scale_factor=8.0 if "norm" in mode else None)
    loss, _ = algorithm.loss(Output(batch.old, f64([1, 2, 3], [4, 0, 0])), batch)
    assert (loss / algorithm.units(batch)).item() == pytest.approx(-0.5 * mean, rel=1e-15)


# ---- groups


HALF_ROOT = f64(0.5).sqrt().item()  # its last bit differs between CPUs


@pytest.mark.parametrize(
    ("least", "kept", "expected"),
    [
        (0.0, [1, 1, 1, 1, 1, 1, 1], None),  # nothing is ever left out, so nothing is reported
        (HALF_ROOT, [1, 1, 1, 1, 1, 0, 0], (2, 1, 5 / 7)),  # at the edge a group is kept: strictly less leaves
        (math.nextafter(HALF_ROOT, 1), [1, 1, 1, 0, 0, 0, 0], (1, 2, 3 / 7)),
        (math.nextafter(1.0, 2), [0] * 7, (0, 3, 0)),
    ],
)
def test_groups_that_spread_less_are_left_out(least: float, kept: list[int], expected: tuple | None) -> None:
    """std is 1 in the first group, sqrt(1/2) = 0.707... in the second, 0 in the third; a fault is in none."""
    batch = batch_of([1] * 8, [0, 0, 0, 1, 1, 2, 2, -3], [1, 2, 3, 0, 1, 5, 5, 0])
    batch.mask[7] = 0
    made, found = GRPO(min_group_std=least).prepare(batch, {})
    assert made.mask[:, 0].tolist() == [*kept, 0]
    assert (made.advantage[made.mask == 0] == 0).all()
    assert GRPO().units(made).item() == sum(kept)
    names = ("train/groups_kept", "train/groups_filtered", "train/trainable_token_share")
    assert found == ({} if expected is None else dict(zip(names, expected, strict=True)))


@pytest.mark.parametrize("scale", [True, False])
def test_a_group_that_is_all_equal_has_exactly_zero(scale: bool) -> None:
    """The float32 mean of 7 x 1000.1 is another number."""
    reward = torch.tensor([1000.1] * 7 + [1.0, 2.0], dtype=torch.float32)  # a second group that does differ
    found = ops.group_advantage(reward, torch.tensor([0] * 7 + [1, 1]), scale)
    assert found[:-2].tolist() == [0.0] * 7
    assert (found[-2:] != 0).all()


# ---- what others change of it


def test_dr_grpo_by_hand() -> None:
    """Rewards 0 and 4: advantages -2 and 2, no std. Answers of 3 and 1 tokens: (2 x 3 - 2 x 1) / 8, over 2 answers."""
    algorithm = DrGRPO(loss_scale_factor=8.0)
    made, _ = algorithm.prepare(batch_of([3, 1], [0, 0], [0, 4]), {})
    assert made.advantage.tolist() == [[-2, -2, -2], [2, 0, 0]]
    assert mean_loss(algorithm, made.old, made) == (2 * 3 - 2 * 1) / 8 / 2


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
def test_gspo_by_hand(new: list[float], advantage: float, loss: float, gradient: float) -> None:
    """Eq. 5 and 7 of its paper."""
    at = f64(new).requires_grad_()
    found, seen = GSPO().loss(Output(at), batch_of([2], advantage=f64([advantage, advantage])))
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-15)
    assert at.grad is not None
    assert at.grad[0].tolist() == pytest.approx([gradient] * 2, rel=1e-14, abs=1e-15)
    assert seen["actor/pg_clipfrac"].total.item() == (2 if gradient == 0 else 0)  # a whole answer, or none of it


@pytest.mark.parametrize(
    ("longest", "buffer", "factor", "expected"),
    [
        (4, 2, 1.0, [0, 0, -0.5, -1, -1]),
        (4, 4, 1.0, [-0.25, -0.5, -0.75, -1, -1]),  # the buffer is all of it
        (4, 2, 0.5, [0, 0, -0.25, -0.5, -0.5]),
        (4, 0, 1.0, [0] * 5),  # no buffer, no price
    ],
)
def test_dapos_price_of_1_to_5_tokens(longest: int, buffer: int, factor: float, expected: list[float]) -> None:
    algorithm = DAPO(max_response_length=longest, overlong_buffer_len=buffer, overlong_penalty_factor=factor)
    assert algorithm.shape_reward(batch_of([1, 2, 3, 4, 5], [0] * 5, [0] * 5)).tolist() == expected


def test_dapos_price_is_part_of_the_advantage_and_does_not_make_a_group_teach() -> None:
    """Scores 1 and 0, and the right answer is too long: the mean is 0.25. Then two are right, one of them too long:
    the scores say that there is nothing to learn."""
    algorithm = DAPO(max_response_length=4, overlong_buffer_len=2, norm_adv_by_std_in_grpo=False)
    batch = batch_of([3, 1, 1, 4], [0, 0, 1, 1], [1, 0, 1, 1])
    assert algorithm.group_filter(batch).tolist() == [True, True, False, False]
    made, _ = algorithm.prepare(batch, {})
    assert made.reward.tolist() == [0.5, 0.0, 1.0, 0.0]
    assert made.advantage.tolist() == [[0.25, 0.25, 0.25, 0], [-0.25, 0, 0, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize(
    ("reward", "teaches"),
    [
        ([0, 0, 0], False),  # all wrong
        ([1, 1, 1], False),  # all right
        ([0, 1, 1], True),
        ([0.7, 0.7, 0.7], False),  # equal, though rounding says otherwise
    ],
)
def test_which_groups_teach_with_dapo(reward: list[float], teaches: bool) -> None:
    batch = batch_of([1] * 5, [5, 5, 5, 2, 2], [*reward, 0, 1])
    assert DAPO().group_filter(batch).tolist() == [teaches] * 3 + [True] * 2
    made, state = DAPO().prepare(batch, {})
    assert made.mask[:, 0].tolist() == [float(teaches)] * 3 + [1.0] * 2
    assert list(state.values()) == [1.0 + teaches, 1.0 - teaches, 1.0 if teaches else 2 / 5]
