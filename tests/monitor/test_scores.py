"""What several scored answers say: against brute force, and against values that are known."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.metrics import wilson
from launcher.engines.torch.train.validation import best_of, majority, powers

SCORES = st.lists(st.floats(-100, 100), min_size=1, max_size=8)


@given(SCORES)
def test_best_of_is_the_mean_over_all_subsets(scores: list[float]) -> None:
    for k in range(1, len(scores) + 1):
        draws = [max(drawn) for drawn in combinations(scores, k)]
        assert best_of(scores, k) == pytest.approx(math.fsum(draws) / len(draws), rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_of_right_and_wrong_it_is_pass_at_k(n: int) -> None:
    """1 - C(n - c, k) / C(n, k), as arXiv:2107.03374 has it."""
    for right in range(n + 1):
        scores = [1.0] * right + [0.0] * (n - right)
        for k in range(1, n + 1):
            expected = 1 - math.comb(n - right, k) / math.comb(n, k)
            assert best_of(scores, k) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_best_of_one_is_the_mean_and_best_of_all_the_best() -> None:
    assert best_of([3.0, -1.0, 4.0], 1) == pytest.approx(2.0)
    assert best_of([3.0, -1.0, 4.0], 3) == 4.0


@pytest.mark.parametrize("k", [0, -1, 4])
def test_more_than_there_are_cannot_be_drawn(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k} of 3 scores; use 1 to 3"):
        best_of([1.0, 2.0, 3.0], k)


@pytest.mark.parametrize(
    ("output", "scores", "expected"),
    [
        ("aab", [1.0, 1.0, 0.0], 1.0),
        ("abb", [1.0, 0.0, 0.0], 0.0),  # the majority may be wrong
        ("ba", [0.0, 1.0], 0.0),  # of equals, what was said first
        ("abba", [0.5, 0.0, 0.0, 0.5], 0.5),
        ("cabab", [9.0, 1.0, 2.0, 1.0, 2.0], 1.0),
        ("a", [0.25], 0.25),
    ],
)
def test_majority(output: str, scores: list[float], expected: float) -> None:
    assert majority(scores, list(output)) == expected


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I: the score interval
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 1 - 0.1170, 1.0),
    ],
)
def test_wilson_against_published_intervals(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right / n, n) == pytest.approx((low, high), abs=5.1e-5)


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_holds_its_share_and_stays_between_0_and_1(right: int, n: int) -> None:
    low, high = wilson(min(right, n) / n, n)
    assert -1e-12 <= low <= min(right, n) / n + 1e-12
    assert min(right, n) / n - 1e-12 <= high <= 1 + 1e-12
    mirrored = wilson(1 - min(right, n) / n, n)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_of_no_trials_nothing_is_known() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])],
)
def test_powers(n: int, expected: list[int]) -> None:
    assert powers(n) == expected
