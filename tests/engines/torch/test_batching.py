"""Which rows are computed together: each once, groups whole where they must be, and bins full."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from launcher.engines.torch.model.packing import pack
from launcher.engines.torch.train.batching import Limits, Sizes, best_fit, micro_batches, split_to_count
from launcher.spec.algorithm import Batch

LONGEST = 12


def drawn(seed: int, groups: int = 9) -> Batch:
    """Groups of 1 to 5 rows that share a prompt, in no order."""
    draw = random.Random(seed)
    rows: list[tuple[int, list[int], int]] = []
    for group in range(groups):
        prompt = draw.choices(range(3, 48), k=draw.randint(1, 6))
        for _ in range(draw.randint(1, 5)):
            rows.append((group, prompt + draw.choices(range(3, 48), k=draw.randint(1, 6)), len(prompt)))
    draw.shuffle(rows)
    length = torch.tensor([len(ids) for _, ids, _ in rows])
    opening, place = torch.tensor([prompt for _, _, prompt in rows]), torch.arange(LONGEST)[None]
    return Batch(
        tokens=torch.tensor([ids + [0] * (LONGEST - len(ids)) for _, ids, _ in rows]),
        length=length,
        mask=((place >= opening[:, None]) & (place < length[:, None])).double(),
        group=torch.tensor([group for group, _, _ in rows]),
    )


LIMITS = [Limits(1), Limits(3), Limits(100), Limits(1, LONGEST), Limits(16, 30), Limits(1, 1000)]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_every_row_once_and_groups_whole(seed: int, limits: Limits, share: bool, whole: bool) -> None:
    batch = drawn(seed)
    parts = micro_batches(batch, limits, whole=whole, share=share)
    assert sorted(row for part in parts for row in part) == list(range(len(batch)))
    assert all(parts)
    if whole:
        homes = [{batch.group[row].item() for row in part} for part in parts]
        assert sum(map(len, homes)) == len(batch.group.unique())


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_limits_are_kept(seed: int, limits: Limits) -> None:
    batch = drawn(seed)
    for share in (True, False):
        for part in micro_batches(batch, limits, whole=False, share=share):
            if limits.tokens is None:
                assert len(part) <= limits.rows
            else:  # a prompt is counted once, as it is laid down; saved too little, it is laid down again
                tokens = pack(batch.rows(part), share=share).ids.shape[1]
                assert tokens <= limits.tokens * (16 / 15 if share else 1)


def test_a_group_that_must_stay_whole_may_be_a_part_of_its_own() -> None:
    group = torch.tensor([0, 0, 0, 1, 1, 2])
    mask = torch.tensor([[0.0, 1, 1, 1]]).repeat(6, 1)
    batch = Batch(torch.zeros(6, 4, dtype=torch.long), torch.full((6,), 4), mask, group)
    assert micro_batches(batch, Limits(2), whole=True, share=False) == [[0, 1, 2], [3, 4], [5]]
    assert micro_batches(batch, Limits(3), whole=True, share=False) == [[0, 1, 2], [3, 4, 5]]
    assert micro_batches(batch, Limits(2, 8), whole=True, share=False) == [[0, 1, 2], [3, 4], [5]]
    assert micro_batches(batch, Limits(2, 12), whole=True, share=False) == [[0, 1, 2], [3, 4, 5]]
    assert micro_batches(batch, Limits(2, 8), whole=False, share=False) == [[0, 1], [3, 4], [2, 5]]
    assert micro_batches(batch, Limits(2, 7), whole=False, share=True) == [[0, 1], [3, 4], [2], [5]]
    assert micro_batches(batch, Limits(2, 10), whole=False, share=True) == [[0, 1, 2], [3, 4], [5]]


def test_rows_without_groups_stand_alone() -> None:
    batch = Batch(torch.zeros(3, 4, dtype=torch.long), torch.tensor([4, 2, 3]), torch.ones(3, 4))
    assert micro_batches(batch, Limits(2), whole=True, share=True) == [[0, 1], [2]]
    assert micro_batches(batch, Limits(2, 6), whole=True, share=True) == [[0, 1], [2]]  # 4 and 2 fill it


def test_a_shared_prompt_is_counted_once() -> None:
    sizes = Sizes([10, 12, 9], [6, 6, 6], [0, 0, 0])
    assert [sizes.tokens(rows) for rows in ([0], [0, 1], [0, 1, 2])] == [10, 16, 19]


def test_a_row_longer_than_the_limit_stands_alone() -> None:
    assert sorted(best_fit([(9, [0]), (3, [1]), (2, [2])], 5)) == [[0], [1, 2]]


def test_best_fit_is_nearly_full_and_fast(within: Callable[[float], AbstractContextManager[None]]) -> None:
    """100,000 lengths up to 4,096 into bins of 8,192: lower than 99 % would be a first-come packing."""
    draw = random.Random(0)
    lengths = [draw.randint(1, 4096) for _ in range(100_000)]
    with within(10.0):
        bins = best_fit([(length, [row]) for row, length in enumerate(lengths)], 8192)
    assert sorted(row for part in bins for row in part) == list(range(len(lengths)))
    held = [sum(lengths[row] for row in part) for part in bins]
    assert max(held) <= 8192
    assert sum(held) / (8192 * len(bins)) >= 0.99


# ---- as many parts on each process


@pytest.mark.parametrize("count", range(1, 12))
def test_evened_has_so_many_parts_and_every_row_once(count: int) -> None:
    parts = [[0, 1, 2, 3], [4, 5], [6]]
    found = split_to_count(parts, count, range(7))
    assert len(found) == max(count, 3)
    assert sorted(row for part in found for row in part) == list(range(7))
    assert parts == [[0, 1, 2, 3], [4, 5], [6]]


def test_evened_cuts_the_largest_in_the_middle_and_never_within_a_key() -> None:
    assert sorted(split_to_count([[0, 1, 2, 3], [4]], 3, range(5))) == [[0, 1], [2, 3], [4]]
    keys = [0, 0, 0, 1, 2, 2]
    assert sorted(split_to_count([[0, 1, 2, 3], [4, 5]], 3, keys)) == [[0, 1, 2], [3], [4, 5]]
    found = split_to_count([[0, 1, 2, 3], [4, 5]], 5, keys)
    assert sorted(found) == [[], [], [0, 1, 2], [3], [4, 5]]  # two processes more compute nothing


def test_sequences_of_a_row_share_only_equal_beginnings() -> None:
    """Turns of a conversation that are each a sequence: a group, whose rows begin their answers at other places."""
    longest, answer = 60, 4
    length = torch.tensor([20, 30, 40, 50, 60])
    place = torch.arange(longest)[None]
    mask = ((place >= length[:, None] - answer) & (place < length[:, None])).double()
    batch = Batch(tokens=place.repeat(5, 1), length=length, mask=mask, group=torch.zeros(5, dtype=torch.long))
    parts = micro_batches(batch, Limits(1, 100), whole=False, share=True)
    assert all(pack(batch.rows(part)).ids.numel() <= 100 for part in parts) and len(parts) == 3
