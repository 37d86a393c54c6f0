"""Steps that sample until they are full, and steps of pairs and prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.grpo import GRPO
from launcher.engines.torch.rollout.decode import Decoder
from launcher.engines.torch.rollout.sampler import TorchSampler
from launcher.engines.torch.train.measure import Clock
from launcher.engines.torch.train.sources import Order, Rollouts, Rows
from launcher.spec.algorithm import Algorithm, Batch
from launcher.spec.data import Row
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Tokens

ROWS, BATCH, N = 16, 6, 2


class Scored(Reward):
    """Fake: the n-th time it is asked, this many of the prompts have a right and a wrong answer; the others none."""

    def __init__(self, mixed: Sequence[int], wrong: float = 0.0) -> None:
        self.mixed, self.wrong, self.asked = iter(mixed), wrong, list[list[Answer]]()

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked.append(list(answers))
        mixed = next(self.mixed)
        return [1.0 if place < mixed * N and place % N else self.wrong for place in range(len(answers))]


@pytest.fixture
def rolled(jobs: ModuleType) -> Callable[..., tuple[Batch, dict[str, float]]]:
    def roll(reward: Reward, algorithm: Algorithm, step: int = 1) -> tuple[Batch, dict[str, float]]:
        rows, model = Rows(), jobs.small("float64")
        for place, (ids, mask) in enumerate(jobs.sequences_of(7, ROWS)):
            rows.rows.append(Row(f"f:{place}", "", ground_truth=str(place)))
            rows.tokens.append(Tokens(place, ids[: mask.index(1)], []))
        source = Rollouts(rows, Order(ROWS, BATCH, 0, True), Decoder(model, TorchSampler(n=N), 5), reward, algorithm, 3)
        return source.batch(step, Clock())

    return roll


def mixed_groups(batch: Batch) -> int:
    return sum(len(set(batch.reward[batch.group == group].tolist())) > 1 for group in batch.group.unique())


@pytest.mark.parametrize(
    ("mixed", "most", "rounds", "full"),
    [
        ((6,), 10, 1, 1.0),  # full at once: never again
        ((2, 3, 1), 10, 3, 1.0),
        ((4, 5), 10, 2, 1.0),  # more than are needed: full is full
        ((0, 0, 6), 10, 3, 1.0),
        ((2, 1), 2, 2, 0.5),  # the bound
        ((0, 0, 0), 3, 3, 0.0),
    ],
)
def test_it_samples_until_it_is_full_within_its_bound(
    mixed: tuple[int, ...], most: int, rounds: int, full: float, rolled: Callable[..., Any]
) -> None:
    reward = Scored(mixed)
    batch, told = rolled(reward, DAPO(max_num_gen_batches=most))
    assert told == {"train/num_gen_batches": float(rounds), "train/share_full": full}
    assert len(reward.asked) == rounds
    assert mixed_groups(batch) == round(full * BATCH)
    assert len(batch) == BATCH * N and len(batch.group.unique()) == BATCH  # empty places are held by others
    made, told = DAPO().prepare(batch, {})
    assert told["train/groups_kept"] == round(full * BATCH)
    assert (made.mask.sum(1) > 0).sum() == round(full * BATCH) * N  # ... which are left out


def test_rounds_take_prompts_anew_and_answers_of_their_own(rolled: Callable[..., Any]) -> None:
    reward = Scored((0,) * 6)
    rolled(reward, DAPO(max_num_gen_batches=6))
    prompts = [[answer.ground_truth for answer in asked[::N]] for asked in reward.asked]
    assert len({tuple(taken) for taken in prompts}) == 6
    assert all(len(set(taken)) == BATCH for taken in prompts)
    answers: dict[str | None, list[tuple[str, ...]]] = {}
    for asked in reward.asked:
        for place in range(0, len(asked), N):
            found = tuple(answer.response for answer in asked[place : place + N])
            answers.setdefault(asked[place].ground_truth, []).append(found)
    several = [found for found in answers.values() if len(found) > 1]
    assert several and any(len(set(found)) == len(found) for found in several)


def test_equal_steps_are_equal_and_others_are_not(rolled: Callable[..., Any]) -> None:
    found = [rolled(Scored((2, 3, 1)), DAPO(), step)[0].tokens.tolist() for step in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_who_does_not_ask_for_more_samples_once(rolled: Callable[..., Any]) -> None:
    for algorithm in (GRPO(), GRPO(min_group_std=0.5), DAPO(max_num_gen_batches=1)):
        reward = Scored((1,))
        batch, told = rolled(reward, algorithm)
        assert (told, len(batch), len(reward.asked)) == ({}, BATCH * N, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_does_not_pass_unseen(value: float, rolled: Callable[..., Any]) -> None:
    """A group with such a score is not one to learn from, and yet the step must be told of it."""
    batch, _ = rolled(Scored((3,), wrong=value), DAPO())
    assert not batch.reward.isfinite().all()


# ---- spread over processes


def by_group(shares: Sequence[dict[str, Any]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for share in shares:
        held = zip(share["group"], share["ids"], share["reward"], share["preference"], share["answer"], strict=True)
        for group, *row in held:
            found.setdefault(group, []).append(tuple(row))
    return dict(sorted(found.items()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_fill_a_step_with_the_same(
    size: int, way: str, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    (single,), found = together(1), together(size)
    for step in range(3):
        shares = [each[f"filled{way}"][step] for each in found]
        assert by_group(shares) == by_group([single["filled"][step]])
        assert all(share["told"] == single["filled"][step]["told"] for share in shares)
        assert len({len(share["group"]) for share in shares}) == 1  # as many to each process
    assert max(step["told"]["train/num_gen_batches"] for step in single["filled"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", " fsdp2"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_process_may_hold_pairs_only(size: int, way: str, together: Callable[[int], list[dict[str, Any]]]) -> None:
    (single,), found = together(1), together(size)
    assert by_group([each[f"mixed{way}"] for each in found]) == by_group([single["mixed"]])
    preferences = [set(each[f"mixed{way}"]["preference"]) for each in found]
    if size == 2:
        assert preferences == [{1, -1}, {0}]


def test_mixed_rows_are_pairs_as_they_are_and_answers_with_scores(jobs: ModuleType) -> None:
    found = jobs.mixed()
    assert found["group"] == [1, 1, 3, 3, 5, 5, 0, 0, 2, 2, 4, 4]  # sampled ones first; a pair has its own group
    assert found["preference"] == [0] * 6 + [1, -1] * 3
    assert found["reward"][6:] == [0.0] * 6
    pairs = jobs.shared(jobs.sequences_of(7, 12), 2)
    rows = [0, 1, 4, 5, 8, 9]  # of the pairs 0, 2, 4
    assert found["ids"][6:] == [pairs[row][0] for row in rows]
    assert found["answer"][6:] == [sum(pairs[row][1]) for row in rows]
    assert torch.tensor(found["answer"]).min() > 0
