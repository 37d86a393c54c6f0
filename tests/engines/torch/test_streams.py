"""Random numbers that belong to an answer."""

from __future__ import annotations

import numpy as np
import pytest

from launcher.engines.torch.rollout import random_streams

WORD = 2**64


def splitmix64(seed: int, t: int) -> float:
    """Number `t` of the stream, with Python's own integers, drawn one after the other as the paper has it."""
    state = seed
    for _ in range(t + 1):
        state = (state + 0x9E3779B97F4A7C15) % WORD
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    z = z ^ (z >> 31)
    return (z >> 11) / 2**53


@pytest.mark.parametrize("t", [0, 1, 2, 77, 1023])
def test_uniform_is_splitmix64(t: int) -> None:
    seeds = [0, 1, 42, 2**63, WORD - 1, 0x9E3779B97F4A7C15]
    found = random_streams.uniform(np.array(seeds, dtype=np.uint64), t)
    assert found.tolist() == [splitmix64(seed, t) for seed in seeds]


def test_the_published_first_values() -> None:
    """SplitMix64 from seed 1234567 (Rosetta Code): 6457827717110365317, 3203168211198807973, 9817491932198370423."""
    words = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = [random_streams.uniform(np.array([1234567], dtype=np.uint64), t).item() for t in range(3)]
    assert found == [(word >> 11) / 2**53 for word in words]


def test_numbers_are_spread_evenly() -> None:
    """Chi-square over 64 bins: 63 on average, its standard deviation sqrt(126) = 11.2."""
    keys = random_streams.stream_keys(0, 1, range(500), 8)  # 4000 streams, 10 numbers of each
    numbers = np.concatenate([random_streams.uniform(keys, t) for t in range(10)])
    assert numbers.min() >= 0 and numbers.max() < 1
    for seen in (numbers, numbers[:4000], numbers[::8], numbers * 64 % 1):  # all, first ones, one sample, later bits
        count = np.histogram(seen, bins=64, range=(0, 1))[0]
        expected = len(seen) / 64
        assert ((count - expected) ** 2 / expected).sum() < 63 + 5 * 11.2


def test_neighbours_are_not_alike() -> None:
    """Correlation of 4000 pairs: 0 on average, its standard deviation 1 / sqrt(4000) = 0.016."""
    keys = random_streams.stream_keys(0, 1, range(2000), 2)
    first = random_streams.uniform(keys, 0)
    for other in (
        random_streams.uniform(keys, 1),
        np.roll(first, 1),
        random_streams.uniform(random_streams.stream_keys(0, 2, range(2000), 2), 0),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 * 0.016


def test_every_answer_of_every_step_has_its_own_stream() -> None:
    found = [
        key
        for seed in (0, 1, 2**63 - 1)
        for step in (-3, -1, 0, 1, 2)  # validation counts down from -1
        for key in random_streams.stream_keys(seed, step, range(20), 8).tolist()
    ]
    assert len(set(found)) == len(found) == 3 * 5 * 20 * 8


def test_keys_come_prompt_by_prompt() -> None:
    found = random_streams.stream_keys(5, 3, [7, 2], 2)
    assert (found.dtype, found.shape) == (np.uint64, (4,))
    assert found.tolist() == [
        *random_streams.stream_keys(5, 3, [7], 2).tolist(),
        *random_streams.stream_keys(5, 3, [2], 2).tolist(),
    ]
    assert (
        random_streams.stream_keys(5, 3, [7], 3).tolist()[:2] == found.tolist()[:2]
    )  # more samples, the first ones stay


def test_dropout_seeds_differ_by_step_and_process_and_suit_torch() -> None:
    found = [
        random_streams.dropout_seed(seed, step, rank) for seed in (0, 9) for step in range(1, 50) for rank in range(4)
    ]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 2**63 for seed in found)


@pytest.mark.parametrize("seed", [0, 3, 2**32, 2**63 - 1])
def test_order_is_a_permutation(seed: int) -> None:
    for rows in (1, 2, 100):
        assert sorted(random_streams.row_order(seed, 0, rows).tolist()) == list(range(rows))


def test_each_epoch_and_seed_has_another_order() -> None:
    found = [
        tuple(random_streams.row_order(seed, epoch, 50).tolist())
        for seed in (0, 1, 2**32, 2**32 + 1)
        for epoch in range(5)
    ]
    assert len(set(found)) == len(found)


PINNED_KEYS = [10414705469639538944, 7321041570023861665, 8835303392297807559, 739540530424548021]
PINNED_NUMBERS = [0.9882325828543107, 0.7328555069214936, 0.30054358586781604, 0.3435523631675492]
PINNED_ORDER = [2, 6, 0, 4, 1, 3, 5, 7]
PINNED_DROPOUT = 303818263549333747


def test_values_that_must_never_change() -> None:
    """A run that is taken up again, on another version or machine, goes on with the same numbers."""
    assert random_streams.stream_keys(0, 1, [0, 1], 2).tolist() == PINNED_KEYS
    assert random_streams.uniform(np.array(PINNED_KEYS, dtype=np.uint64), 5).tolist() == PINNED_NUMBERS
    assert random_streams.row_order(0, 0, 8).tolist() == PINNED_ORDER
    assert random_streams.dropout_seed(0, 1, 0) == PINNED_DROPOUT
