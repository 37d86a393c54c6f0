"""What DAPO changes of GRPO: which groups teach, and what length costs."""

from __future__ import annotations

import pytest
import torch

from launcher.algorithms.dapo import DAPO
from launcher.spec.algorithm import Batch


def batch_of(reward: list[float], group: list[int], lengths: list[int] | None = None) -> Batch:
    lengths = [1] * len(reward) if lengths is None else lengths
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).double()
    rewards = torch.tensor(reward, dtype=torch.float64)
    return Batch(mask, torch.tensor(lengths), mask, group=torch.tensor(group), reward=rewards, old=0 * mask)


def price(longest: int, buffer: int, lengths: list[int], factor: float = 1.0) -> list[float]:
    algorithm = DAPO(max_response_length=longest, overlong_buffer_len=buffer, overlong_penalty_factor=factor)
    return algorithm.shape_reward(batch_of([0.0] * len(lengths), [0] * len(lengths), lengths)).tolist()


@pytest.mark.parametrize(
    ("longest", "buffer", "factor", "expected"),
    [
        (4, 2, 1.0, [0, 0, -0.5, -1, -1]),
        (4, 4, 1.0, [-0.25, -0.5, -0.75, -1, -1]),  # the buffer is all of it
        (4, 2, 0.5, [0, 0, -0.25, -0.5, -0.5]),
        (4, 0, 1.0, [0] * 5),  # no buffer, no price
    ],
)
def test_the_price_of_1_to_5_tokens(longest: int, buffer: int, factor: float, expected: list[float]) -> None:
    assert price(longest, buffer, [1, 2, 3, 4, 5], factor) == expected


def test_the_price_is_part_of_the_advantage() -> None:
    """Scores 1 and 0, and the right answer is too long: rewards 0.5 and 0, so the mean is 0.25."""
    algorithm = DAPO(max_response_length=4, overlong_buffer_len=2, norm_adv_by_std_in_grpo=False)
    made, _ = algorithm.prepare(batch_of([1.0, 0.0], [0, 0], [3, 1]), {})
    assert made.reward.tolist() == [0.5, 0.0]
    assert made.advantage.tolist() == [[0.25] * 3, [-0.25, 0, 0]]


@pytest.mark.parametrize(
    ("reward", "teaches"),
    [
        ([0, 0, 0], False),  # all wrong
        ([1, 1, 1], False),  # all right
        ([0, 1, 1], True),
        ([0.7, 0.7, 0.7], False),  # equal, though rounding says otherwise
    ],
)
def test_which_groups_teach(reward: list[float], teaches: bool) -> None:
    batch = batch_of([*reward, 0.0, 1.0], [5, 5, 5, 2, 2])
    assert DAPO().group_filter(batch).tolist() == [teaches] * 3 + [True] * 2
    made, told = DAPO().prepare(batch, {})
    assert made.mask[:, 0].tolist() == [float(teaches)] * 3 + [1.0] * 2
    assert told == {
        "train/groups_kept": 1.0 + teaches,
        "train/groups_filtered": 1.0 - teaches,
        "train/trainable_token_share": 1.0 if teaches else 2 / 5,
    }


def test_the_price_of_length_does_not_make_a_group_teach() -> None:
    """All right, one of them too long: the scores say that there is nothing to learn."""
    algorithm = DAPO(max_response_length=4, overlong_buffer_len=2)
    batch = batch_of([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], [1, 4, 1, 1])
    assert algorithm.group_filter(batch).tolist() == [False, False, True, True]
    made, _ = algorithm.prepare(batch, {})
    assert made.reward.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert made.advantage[:2].tolist() == [[0.0] * 4] * 2
