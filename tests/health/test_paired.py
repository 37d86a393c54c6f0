"""Tests and intervals against figures computed by hand or by another way, and against simulated error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from launcher.core.metrics import HeldOut, wilson
from launcher.health.paired import (
    agresti_min,
    compare_paired,
    compare_replicates,
    compare_unpaired,
    holm,
    mcnemar_exact,
    newcombe,
    paired_t,
    t_quantile,
    t_tails,
)


@pytest.mark.parametrize(("only_a", "only_b", "expected"), [
    (0, 0, 1.0),  # nothing differs
    (1, 0, 1.0),  # one coin says nothing
    (0, 5, 0.0625),  # 2 / 2^5
    (6, 0, 0.03125),  # 2 / 2^6
    (1, 9, 2 * (1 + 10) / 1024),
    (5, 5, 1.0),
    (10, 20, 2 * sum(math.comb(30, k) for k in range(11)) / 2**30),
])  # fmt: skip
def test_mcnemar_is_a_binomial_tail(only_a: int, only_b: int, expected: float) -> None:
    assert mcnemar_exact(only_a, only_b) == pytest.approx(expected, abs=1e-15) == mcnemar_exact(only_b, only_a)


def test_agresti_mins_interval_of_the_prime_ministers_approval() -> None:
    """794 approve twice, 150 only first, 86 only later, 570 never (Agresti, Categorical Data Analysis, section 10.1).

    (86 - 150) / 1602 = -0.03995; sqrt(237 - 64^2 / 1602) / 1602 = 0.0095578; times 1.96 = 0.018733.
    """
    assert agresti_min(150, 86, 1600) == pytest.approx((-0.058683, -0.021218), abs=2e-6)
    low, high = agresti_min(0, 3, 3)
    assert -1 <= low < high <= 1


def test_newcombes_example() -> None:
    """56 of 70 less 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, table II, method 10)."""
    a, b = HeldOut(1, "x", 48 / 80, *wilson(48 / 80, 80)), HeldOut(1, "x", 56 / 70, *wilson(56 / 70, 70))
    assert newcombe(a, b) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe(HeldOut(1, "x", 0.5), b) is None
    assert compare_unpaired(HeldOut(1, "x", 0.5), b).p is None
    assert compare_unpaired(a, b).p == pytest.approx(0.0077, abs=1e-3)  # 0 is just outside of the interval
    assert compare_unpaired(a, a).p == 1.0


def test_students_example() -> None:
    """Hours of sleep gained with two drugs: 0.70 to 2.46 (Student 1908), t = 4.06 with 9 degrees; 9 of 10 changed."""
    low, high, p = paired_t([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert (low, high) == pytest.approx((0.7001, 2.4599), abs=1e-4) and p == 2 / 2**9
    assert paired_t([1.2, -2.4, 1.3, 1.3, 0.0])[2] == pytest.approx(t_tails(0.28 / (1.5959 / 5**0.5), 4), abs=1e-3)


@pytest.mark.parametrize(("differences", "p"), [([0.5] * 2, 0.5), ([0.5] * 9, 2 / 2**9), ([0.0] * 9, 1), ([3.0], 1)])
def test_equal_differences_are_no_surer_than_their_signs(differences: list[float], p: float) -> None:
    assert paired_t(differences)[2] == p == paired_t([-x for x in differences])[2]


def test_holms_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_test_is_chosen_by_the_scores() -> None:
    shares = compare_paired([1, 0, 0, 1, 0], [1, 1, 1, 1, 0])
    assert (shares.method, shares.only_a, shares.only_b, shares.value) == ("McNemar exact", 0, 2, pytest.approx(0.4))
    assert compare_paired([0.5, 0.1], [0.7, 0.2]).method == "paired t test"


@pytest.mark.parametrize(("t", "freedom", "tails"), [
    (12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (4.604, 4, 0.01), (2.228, 10, 0.05),
    (1.984, 100, 0.05), (0, 3, 1),
])  # fmt: skip
def test_students_distribution_is_that_of_the_tables(t: float, freedom: float, tails: float) -> None:
    assert t_tails(t, freedom) == pytest.approx(tails, abs=2e-4)
    assert t_quantile(tails, freedom) == pytest.approx(t, abs=2e-3)


def test_runs_of_two_settings_are_compared_by_a_pooled_t_test() -> None:
    """Means 0.5 and 0.7, variance 0.01 within each, so t = 0.2 / sqrt(0.01 * 2 / 3) = 2.449 with 4 degrees."""
    a, b = ([middle + x for x in (-0.1, 0.0, 0.1)] for middle in (0.5, 0.7))
    found = compare_replicates(a, b, [a, b])
    assert found.p == pytest.approx(0.0705, abs=1e-3) and found.freedom == pytest.approx(4)
    third = [0.1, 0.11, 0.12]
    assert (compare_replicates(a, b, [a, b, third]).p or 1.0) < found.p, "its runs say how little seeds do"
    assert compare_replicates(a[:1], b[:1], [a[:1], b[:1]]).p is None


# ---- simulated error rates; seeds are fixed, bounds are three standard errors of the simulation


def test_equal_policies_are_rarely_called_different() -> None:
    """McNemar's exact test is conservative; its interval holds the difference in at least 93 %, that of partial credit
    in about 95 %."""
    draws, rejected, held, unpaired, partial, runs = np.random.default_rng(5), 0, 0, 0, 0, 600
    for number in range(runs):
        item = draws.beta(1.0, 1.0, 120)  # some items are easier: the scores of both runs are correlated
        a, b = (draws.random((2, 120)) < item).astype(float)
        found = compare_paired(a.tolist(), b.tolist())
        assert found.p is not None and found.low is not None and found.high is not None
        rejected += found.p < 0.05
        held += found.low <= 0 <= found.high
        sides = [HeldOut(1, "x", float(x.mean()), *wilson(float(x.mean()), 120)) for x in (a, b)]
        if not number % 4:
            credit = draws.beta(0.3, 1.0, (2, 30)).tolist()
            partial += (compare_paired(*credit).p or 0.0) < 0.05
        unpaired += (compare_unpaired(*sides).p or 0.0) < 0.05
    assert 0.01 < rejected / runs < 0.065
    assert held / runs > 0.93
    assert 0.02 < 4 * partial / runs < 0.08
    assert unpaired / runs < rejected / runs  # it ignores that both answered the same items
