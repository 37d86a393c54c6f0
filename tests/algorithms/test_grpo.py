"""GRPO against hand-made numbers and against the paper's eq. 3 and 4, written out in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from launcher.algorithms.grpo import GRPO
from launcher.spec.algorithm import Batch, Output

torch.set_num_threads(1)

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
    return new, GRPO().prepare(batch)


def mean_loss(algorithm: GRPO, logp: Tensor, batch: Batch) -> Tensor:
    return algorithm.loss(Output(logp), batch)[0] / algorithm.units(batch)


def gradient(algorithm: GRPO, logp: Tensor, batch: Batch) -> Tensor:
    logp = logp.clone().requires_grad_()
    mean_loss(algorithm, logp, batch).backward()
    assert logp.grad is not None
    return logp.grad


# ---- by hand


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.5, +1.0, -1.2, True),  # wanted, and already far up: stop at 1 + clip_ratio_high
        (0.5, +1.0, -0.5, False),  # wanted, but fell: full pull
        (0.5, -1.0, +0.8, True),  # unwanted, and already far down: stop at 1 - clip_ratio_low
        (1.5, -1.0, +1.5, False),  # unwanted, but rose: full push
    ],
)
def test_the_four_cases_of_the_clip(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    one = torch.ones(1, 2, dtype=torch.float64)
    mask = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    batch = Batch(torch.zeros(1, 2), torch.tensor([2]), mask, old=0 * one, advantage=advantage * mask)
    found, seen = GRPO().loss(Output(math.log(ratio) * mask), batch)
    assert found.item() == pytest.approx(loss, abs=1e-15)
    assert seen["actor/pg_clipfrac@token"].item() == clipped
    assert seen["actor/ppo_kl@token"].item() == pytest.approx(-math.log(ratio), abs=1e-15)  # old - new


def test_an_answer_counts_as_one_however_long_it_is() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
    advantage = torch.tensor([[3.0], [-1.0], [9.0]], dtype=torch.float64) * mask
    batch = Batch(torch.zeros(3, 5), torch.tensor([5, 2, 1]), mask, old=0 * mask, advantage=advantage)
    loss, seen = GRPO().loss(Output(0 * mask), batch)
    assert loss.item() == -2.0  # -(4 x 3 / 4) - (-1 / 1), and nothing from the answer without tokens
    assert GRPO().units(batch).item() == 2.0  # answers that have tokens
    assert seen["actor/pg_loss"].item() == -2.0


def test_kl_by_hand() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 1, 0]], dtype=torch.float64)
    new = torch.tensor([[0, -1.0, -2.0], [0, -1.0, 0]], dtype=torch.float64)
    reference = torch.tensor([[0, -2.0, -1.0], [0, -1.0, 0]], dtype=torch.float64)
    batch = Batch(torch.zeros(2, 3), torch.tensor([3, 2]), mask, old=new, reference=reference, advantage=0 * mask)
    loss, seen = GRPO(kl_loss_coef=0.04).loss(Output(new), batch)
    # first answer: d = -1 and +1: ((e^-1 + 1 - 1) + (e - 1 - 1)) / 2; second: 0
    kl = (math.exp(-1) + math.e - 2) / 2
    assert seen["actor/kl_loss"].item() == pytest.approx(kl, abs=1e-15)
    assert loss.item() == pytest.approx(0.04 * kl, abs=1e-15)


def test_prepare_spreads_the_advantage_over_the_answers_tokens() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 0, 1]], dtype=torch.float64)
    batch = Batch(torch.zeros(2, 3), torch.tensor([3, 3]), mask, group=torch.tensor([5, 5]))
    batch = replace(batch, reward=torch.tensor([0.0, 2.0], dtype=torch.float64))
    a = 1 / (math.sqrt(2) + 1e-6)
    found = GRPO().prepare(batch).advantage
    assert torch.allclose(found, torch.tensor([[0, -a, -a], [0, 0, a]], dtype=torch.float64), atol=1e-15)
    plain = GRPO(norm_adv_by_std_in_grpo=False).prepare(batch).advantage
    assert plain.tolist() == [[0, -1, -1], [0, 0, 1]]


@pytest.mark.parametrize(("coefficient", "roles"), [(0.0, frozenset()), (0.04, frozenset({"reference"}))])
def test_the_reference_is_asked_for_only_when_it_counts(coefficient: float, roles: frozenset[str]) -> None:
    assert GRPO(kl_loss_coef=coefficient).needs == roles


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
def test_the_loss_is_the_papers_objective_turned_over(seed: int, beta: float) -> None:
    new, batch = drawn(seed)
    found = mean_loss(GRPO(kl_loss_coef=beta), new, batch)
    assert found.item() == pytest.approx(-paper(new, batch, 0.2, beta), rel=1e-13)


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_gradient_is_the_papers_by_finite_differences(beta: float) -> None:
    new, batch = drawn(1)
    found, step = gradient(GRPO(kl_loss_coef=beta), new, batch), 1e-6
    ratio = (new - batch.old).exp()
    assert min((ratio - edge).abs()[batch.mask > 0].min() for edge in (0.8, 1.2)) > 1e-4  # no kink within a step
    cut = 0
    for row, column in batch.mask.nonzero().tolist():
        up, down = new.clone(), new.clone()
        up[row, column] += step
        down[row, column] -= step
        expected = -(paper(up, batch, 0.2, beta) - paper(down, batch, 0.2, beta)) / (2 * step)
        assert found[row, column].item() == pytest.approx(expected, rel=1e-7, abs=1e-9)
        cut += expected == 0
    assert cut > 0 or beta  # some tokens are clipped, so the flat part is tested too


# ---- properties


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_the_gradient_does_not_depend_on_how_the_batch_is_split(size: int, beta: float) -> None:
    algorithm = GRPO(kl_loss_coef=beta)
    new, batch = drawn()
    parts = new.clone().requires_grad_()
    for start, part in zip(range(0, B, size), batch.split(size), strict=True):
        loss, _ = algorithm.loss(Output(parts[start : start + size]), part)
        (loss / algorithm.units(batch)).backward()
    whole = gradient(algorithm, new, batch)
    assert parts.grad is not None
    assert (whole - parts.grad).abs().max() <= 1e-12
    assert whole.abs().max() > 0


def test_no_gradient_reaches_masked_tokens() -> None:
    new, batch = drawn()
    found = gradient(GRPO(kl_loss_coef=0.04), new, batch)
    assert (found[batch.mask == 0] == 0).all()
    assert (found[batch.mask > 0] != 0).any()


def test_what_stands_on_masked_tokens_does_not_matter() -> None:
    new, batch = drawn()
    algorithm = GRPO(kl_loss_coef=0.04)
    noise = torch.randn_like(new) * (1 - batch.mask)
    noisy = replace(batch, old=batch.old + noise, reference=batch.reference - noise)
    assert mean_loss(algorithm, new + 2 * noise, noisy).item() == mean_loss(algorithm, new, batch).item()


def test_at_ratio_one_it_is_reinforce() -> None:
    new, batch = drawn()
    batch = replace(batch, old=new)
    found = gradient(GRPO(), new, batch)
    logp = new.clone().requires_grad_()
    score = batch.advantage.sum(1) / batch.mask.sum(1)  # [B] the same on all of an answer's tokens
    mean_logp = (logp * batch.mask).sum(1) / batch.mask.sum(1)
    (-(score * mean_logp).mean()).backward()
    assert logp.grad is not None
    assert torch.allclose(found, logp.grad, rtol=0, atol=1e-15)


def test_the_order_of_answers_within_a_group_does_not_matter() -> None:
    new, batch = drawn()
    order = torch.tensor([2, 0, 3, 1, 7, 6, 4, 5])
    unprepared = replace(batch, advantage=None)
    shuffled = GRPO().prepare(unprepared.rows(order))
    assert torch.allclose(gradient(GRPO(), new[order], shuffled), gradient(GRPO(), new, batch)[order], atol=1e-15)


def test_a_constant_added_to_the_rewards_does_not_matter() -> None:
    new, batch = drawn()
    lifted = GRPO().prepare(replace(batch, reward=batch.reward + 7))
    assert torch.allclose(gradient(GRPO(), new, lifted), gradient(GRPO(), new, batch), atol=1e-12)


def test_a_group_without_differences_pulls_nowhere() -> None:
    new, batch = drawn()
    dull = GRPO().prepare(replace(batch, reward=torch.tensor([0.7] * 4 + [0.0, 1.0, 0.0, 1.0], dtype=torch.float64)))
    found = gradient(GRPO(), new, dull)
    assert (found[:4] == 0).all()
    assert (found[4:] != 0).any()


@pytest.mark.parametrize("field", ["clip_ratio_low", "clip_ratio_high"])
@pytest.mark.parametrize("value", [0.0, -0.1])
def test_a_clip_without_room_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        GRPO(**{field: value})
