"""What conditions of rules ask of a metric, as exact numbers of series that are small enough to reckon by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from launcher.health.series import FUNCTIONS, Series, UnknownValue, noise

RAMP = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
WAVE = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0]
FALLS = [4.0, 5.0, 5.0, 4.0, 2.0, -1.0]
STAIRS = [float(number // 10) for number in range(100)]
LONG = [float(number) for number in range(1, 301)]
NAMED = {"RAMP": RAMP, "WAVE": WAVE, "FALLS": FALLS, "STAIRS": STAIRS, "LONG": LONG}
CASES = yaml.safe_load((Path(__file__).parent / "series.yaml").read_text(encoding="utf-8"))
SHARES = [0.40625, 0.4375, 0.46875, 0.4375]


def series(values: Sequence[float], first: int = 1) -> Series:
    made = Series()
    for step, value in enumerate(values, first):
        made.add(step, value)
    return made


def asked(name: str, of: Series, *more: float) -> float:
    return FUNCTIONS[name](of, *more)


@pytest.mark.parametrize(("values", "question", "value"), CASES["values"])
def test_values(values: str | list[float], question: list, value: float) -> None:
    of = NAMED[values] if isinstance(values, str) else values
    assert asked(question[0], series(of), *question[1:]) == pytest.approx(value, abs=1e-9)


def test_noise_is_the_largest_of_three_estimates() -> None:
    """The mean size of a normal value is 0.7979 deviations, the median 0.6745."""
    assert noise(WAVE) == pytest.approx(2 / 0.6745 / math.sqrt(2))
    assert noise([0.0, 0.0, 0.0, 0.0, 9.0]) == pytest.approx(math.sqrt(81 / 4) / math.sqrt(2))
    assert noise([0.0, 1.0, 0.0, 1.0, 4.0, 1.0]) == pytest.approx(9 / 5 / 0.7979 / math.sqrt(2))
    assert noise([1.0]) == noise([]) == 0
    few = noise(WAVE) * (1 + 8 / 11)  # measured at 11 values; at 12 there are less than a tenth more
    assert asked("noise", series(WAVE)) == pytest.approx(few)
    assert asked("error", series(WAVE), 8) == pytest.approx(few / 2)
    assert asked("error", series(WAVE)) == pytest.approx(few * math.sqrt(2 / 3))


def test_a_window_is_as_wide_as_the_noise_asks() -> None:
    """Its mean shows 0.05 of the span; at most a quarter of the values, and at most 50."""
    assert series(RAMP).window == series([2.0] * 40).window == 3
    assert series(WAVE).window == 3 and series(WAVE * 3).window == 8  # measured at 33 values
    assert series([0.5 * value for value in WAVE * 30]).window == 50
    small = series([10.0 + value for value in WAVE * 30])
    assert small.window == math.ceil((noise(WAVE) * (1 + 8 / small._noise_size) / (0.05 * 13)) ** 2) == 11
    spread = noise(WAVE) * (1 + 8 / 11)
    assert asked("sure", series(WAVE)) == pytest.approx(7 / 3 - 2 * spread / math.sqrt(3))


def test_the_outline_halves_itself() -> None:
    made = series(LONG, first=11)
    assert (made.stride, made.size, len(made.outline)) == (4, 300, 75)
    assert (made.outline[0], made.outline[-1]) == ((14, 2.5), (310, 298.5))
    assert made.near(18, 2) == made.near(21, 2) == made.near(11, 2) == 4.5 and made.near(22, 2) == 8.5
    assert (made.lately(2), made.before(2, 3), made.before(299, 3)) == ([299, 300], [296, 297, 298], [])
    assert (len(made.latest), len(made.begin), made.steps[0]) == (256, 64, 55)
    assert made.before(254, 3) == [45, 46] and made.lately(999)[0] == 45


def test_scatter_is_off_the_line_through_neighbours() -> None:
    assert asked("scatter", series(RAMP)) == pytest.approx(0, abs=1e-12)
    bends = 4 / 0.6745 / math.sqrt(6)
    assert asked("scatter", series(WAVE)) == pytest.approx(bends * (1 + 4 / 12))
    slow = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0] * 8
    assert asked("scatter", series(slow)) == pytest.approx(2 / 0.6745 / math.sqrt(6))  # of those three apart
    assert asked("scatter", series(slow[:17])) == pytest.approx(
        max(8 / 15 / 0.7979 / 1, 1 / 0.6745, math.sqrt(10 / 15)) / math.sqrt(6) * (1 + 4 / 17), rel=0.2
    )


@pytest.mark.parametrize(("values", "error"), [
    (SHARES, math.sqrt(0.4375 * 0.5625 / 32)), ([0.4375, 0.46875], math.sqrt(0.453125 * 0.546875 / 32)),
    ([0.5, 0.25], 0), ([0.4375, 1.5], 0), ([0.4375, -0.5], 0), ([0.4375, 0.1234567], 0), ([1 / 4999, 1 / 4993], 0),
    ([1 / 5001] * 2, 0),
    ([1 / 4999] * 2, math.sqrt(4998 / 4999**2 / 4999)), ([1.0, 1.0], 0),
])  # fmt: skip
def test_the_error_of_a_share_of_items(values: list[float], error: float) -> None:
    assert asked("item_error", series(values)) == pytest.approx(error, abs=1e-12)


def test_partial_credit_has_at_least_its_scatter() -> None:
    values = [0.09375, 0.90625] * 4
    assert asked("item_error", series(values)) == asked("scatter", series(values)) > 0.5
    assert asked("item_error", series(values[:7])) < 0.1


def test_a_drop_is_in_the_noise_before_it() -> None:
    steady = [5.0, 6.0] * 10
    made = series([*steady, 0.0, 0.0])
    before = series(steady)
    assert asked("drop", made) == pytest.approx(before.best_mean / (before._noise / math.sqrt(2)))
    assert asked("drop", series([5.0] * 20)) == 0
    assert asked("share", made) == 0.0 or asked("share", made) == pytest.approx(made.mean(made.window) / made.sure_mean)


def test_floors_where_parts_of_a_mean_are_known() -> None:
    made = series([1.0, 2.0, 3.0])
    for lowest, std in ((-2.0, 1.0), (0.5, 3.0), (math.nan, math.inf), (None, None)):
        made.add_parts(lowest, std)
    assert (made.lowest_part, made.largest_std, asked("floor", made)) == (-2.0, 3.0, -2.0)
    negative = series([-1.0, 2.0, 3.0])
    negative.add_parts(None, 3.0)
    assert asked("floor", negative) == 4 / 3 - 2 * 3.0


def test_gaps_and_distances_of_two_metrics() -> None:
    rises, other = series([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), series([1.0, 1.5, 2.0])
    assert rises.gap_growth(other) == 5 - 2.0 - ((3 - 1.0) + (3 - 1.5)) / 2
    assert rises.distance(other, Series()) == 5 and rises.distance(Series(), series([-8.0])) == 8
    assert rises.distance(other, series([-4.0])) == 5
    for one, third in ((other, Series()), (Series(), Series())):
        with pytest.raises(UnknownValue):
            Series().distance(one, third)


def test_what_is_not_finite_is_counted_and_nothing_else() -> None:
    made = series([1.0, math.nan, math.inf])
    assert [asked(name, made) for name in ("nonfinite", "nan", "count", "last", "mean_of_all")] == [2, False, 1, 1, 1]
    made.add(4, math.nan)
    assert [asked(name, made) for name in ("nonfinite", "nan", "known")] == [3, True, True]
    made.add(5, 2.0)
    assert [asked(name, made) for name in ("nonfinite", "nan", "peak")] == [0, False, 1.5]
    assert not asked("known", Series()) and asked("nonfinite", Series()) == 0


@pytest.mark.parametrize(("fewest", "question"), CASES["needs"])
def test_how_many_values_a_question_needs(fewest: int, question: list) -> None:
    with pytest.raises(UnknownValue):
        asked(question[0], series(WAVE[: fewest - 1]), *question[1:])
    assert math.isfinite(asked(question[0], series(WAVE[:fewest]), *question[1:]))
