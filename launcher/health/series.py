"""The values of one metric so far, in bounded memory, and what conditions of rules can ask of them (`FUNCTIONS`).

A run is compared with its own start, in units of its own noise: from step to step a metric of a small batch differs
more than one of a large batch, and a rule must not call that a change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import islice, pairwise
from operator import gt, lt
from statistics import fmean, median
from typing import NamedTuple

LARGEST = 1e150  # values are clipped to it, as the square of a larger one may overflow
START = 64  # first values that are kept
RECENT = 256  # last values that are kept
NOISE = 200  # last values that the noise is measured on
SIGNIFICANT = 4.0  # standard errors; a run is judged at hundreds of steps
LOWS = 8  # last values that may be compared with all before them
CHANCE = 2.0  # standard errors by which the highest of many means exceeds what it stands for
FIFTHS = (3, 50)  # fewest and most values of the means that `start` and `end` compare
LATER = 1.1  # times as many values, at which the noise is measured again
SHARPEST = 0.05  # of a metric's range: changes that a window's mean has to show
WINDOWS = (3, 50)  # fewest and most values of a window
OUTLINE = 128  # most points of an outline
BENDS = 50  # last values whose scatter is measured
LAGS = (3, 5, 8)  # distances, in values, of the neighbours that a value is compared with
MOST_ITEMS = 5_000  # largest number of items that a share is recognised to be of


class UnknownValue(Exception):
    """The log does not have the metric, or not enough values of it."""


class Fifths(NamedTuple):
    """Means of a fifth of the values each, 3 to 50, from the beginning of a series to its end."""

    start: float
    top: float
    bottom: float
    end: float
    end_error: float
    """Standard error of the difference of two."""


class Series:
    """The first `START` and last `RECENT` values of a metric, with the steps of the latter; running extremes of all.

    A value that is not finite is counted, and left out of everything else. Methods raise `UnknownValue` where there are
    too few values for what they say.
    """

    def __init__(self) -> None:
        self.begin: list[float] = []
        self.latest: deque[float] = deque(maxlen=RECENT)
        self.steps: deque[int] = deque(maxlen=RECENT)
        self.size, self.sum = 0, 0.0
        self.nonfinite_value: float | None = None
        """The latest value, where it is NaN or infinite."""
        self.nonfinite_in_a_row = 0
        self._nonfinite_step = -1
        self.min, self.max = math.inf, -math.inf
        self.lowest_pair, self.highest_pair = math.inf, -math.inf
        """Lowest and highest mean of two neighbours."""
        self.outline: list[tuple[int, float]] = []
        """The whole series as means of `stride` values each, with the step of the last of them."""
        self.stride = 1
        self.best_mean = -math.inf
        """Highest mean of a window so far."""
        self.sure_mean = -math.inf
        """The same less 2 standard errors, which the highest of many means owes to chance."""
        self.spread_of_one = 0.0
        """Standard deviation of a value around the trend; of few values an upper bound."""
        self.lowest_part: float | None = None
        """Lowest single value that a mean was of, where it is known."""
        self.largest_std = 0.0
        """Largest standard deviation of the values that a mean was of, where it is known."""
        self.window = WINDOWS[0]
        """How many values the mean needs to show a change of `SHARPEST` of the metric's span: 3 to 50."""
        self._noise, self._noise_size, self._chance_margin = 0.0, 0, 0.0  # noise of the first `_noise_size` values
        self._pending_sum, self._pending_count = 0.0, 0  # sum and number of the values that are not yet in the outline
        self._items = (0, 1, False)  # (`size` then, number of items that values are shares of, exact?)
        self._minimum_before: deque[float] = deque(maxlen=LOWS)
        self._recent_noise: deque[float] = deque([0.0], maxlen=LOWS)

    # ---- what comes in

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self.nonfinite_value = value
            self.nonfinite_in_a_row += step != self._nonfinite_step
            self._nonfinite_step = step
            return
        if self.steps and self.steps[-1] == step and self.latest[-1] == value:
            return  # printed again, by another process
        self.nonfinite_value, self.nonfinite_in_a_row = None, 0
        value = max(min(value, LARGEST), -LARGEST)
        self.size += 1
        self.sum += value
        if self.latest:
            pair = (self.latest[-1] + value) / 2
            self.lowest_pair, self.highest_pair = min(self.lowest_pair, pair), max(self.highest_pair, pair)
        self._add_to_outline(step, value)
        if len(self.begin) < START:
            self.begin.append(value)
        self.latest.append(value)
        self.steps.append(step)
        self._minimum_before.append(self.min)
        self.min, self.max = min(self.min, value), max(self.max, value)
        if self.size >= LATER * self._noise_size:
            self._noise, self._noise_size = noise(self.lately(NOISE)), self.size
            self.spread_of_one, self.window = self._noise * (1 + 8 / self.size), self._find_window()
            self._chance_margin = CHANCE * self.spread_of_one / math.sqrt(self.window)
        self._recent_noise.append(self._noise)
        if self.size >= WINDOWS[0]:
            mean = self.mean(self.window)
            self.best_mean, self.sure_mean = max(self.best_mean, mean), max(self.sure_mean, mean - self._chance_margin)

    def add_parts(self, lowest: float | None, std: float | None) -> None:
        """What is known of the values whose mean was added: the lowest, and their standard deviation."""
        if lowest is not None and math.isfinite(lowest):
            self.lowest_part = lowest if self.lowest_part is None else min(self.lowest_part, lowest)
        if std is not None and math.isfinite(std):
            self.largest_std = max(self.largest_std, std)

    def _add_to_outline(self, step: int, value: float) -> None:
        self._pending_sum, self._pending_count = self._pending_sum + value, self._pending_count + 1
        if self._pending_count < self.stride:
            return
        self.outline.append((step, self._pending_sum / self.stride))
        self._pending_sum, self._pending_count = 0.0, 0
        if len(self.outline) == OUTLINE:
            halves = zip(self.outline[::2], self.outline[1::2], strict=True)
            self.outline = [(later, (a + b) / 2) for (_, a), (later, b) in halves]
            self.stride *= 2

    def _find_window(self) -> int:
        if not self.span() or not self.spread_of_one:
            return WINDOWS[0]
        needed = math.ceil(min(self.spread_of_one / (SHARPEST * self.span()), WINDOWS[1]) ** 2)
        return min(max(needed, WINDOWS[0]), WINDOWS[1], max(self.size // 4, WINDOWS[0]))

    # ---- values

    def having(self, fewest: int) -> Series:
        """This series, where it has so many values. Raises `UnknownValue`."""
        if self.size < fewest:
            raise UnknownValue
        return self

    def lately(self, count: int) -> list[float]:
        """The last `count` values, or as many as there are."""
        values = list(islice(reversed(self.latest), count))
        values.reverse()
        return values

    def before(self, skip: int, count: int) -> list[float]:
        """The `count` values that came before the last `skip`."""
        end = len(self.latest) - skip
        return list(islice(self.latest, max(end - count, 0), max(end, 0)))

    def near(self, step: int, count: int) -> float:
        """Mean of the last `count` points of the outline up to `step`, of the first where there are fewer."""
        end = max(bisect_right(self.outline, (step, math.inf)), count)
        return fmean(value for _, value in self.outline[max(end - count, 0) : end])

    def last(self) -> float:
        """The latest value."""
        return self.having(1).latest[-1]

    def mean(self, count: int = 3) -> float:
        """Mean of the latest values."""
        return fmean(self.having(count).lately(count))  # exact: ten times 0.005 is 0.005

    def average(self, count: int) -> float:
        """Mean of the latest values, or of fewer where there are no more."""
        return fmean(self.having(1).lately(count))

    def mean_of_all(self) -> float:
        """Mean of all values."""
        return self.having(1).sum / self.size

    def first(self, count: int = 3) -> float:
        """Mean of the first values."""
        return fmean(self.having(count).begin[:count])

    def halfway(self, count: int = 3) -> float:
        """Median of the `count` values before the middle of the run, in long runs of means of neighbours; it needs 10
        values. What grows in proportion to the steps is at most twice as large."""
        middle = self.having(max(10, 2 * count)).size // 2 // self.stride
        return median(value for _, value in self.outline[max(middle - count, 0) : middle])

    # ---- extremes

    def span(self) -> float:
        """From the smallest value to the largest, 0 among them."""
        return max(self.having(1).max, 0.0) - min(self.min, 0.0)

    def floor(self) -> float:
        """What the metric is when all is lost: the lowest single value; where that is unknown 0, or, if the metric has
        been below 0, its least value or 2 standard deviations below the best: rewards with it are as far apart."""
        lowest = self.having(3).lowest_part
        if lowest is not None:
            return min(lowest, self.min)
        return min(self.min, self.best_mean - 2 * self.largest_std) if self.min < 0 else 0.0

    def record_low(self, count: int = 2) -> bool:
        """Whether each of the last `count` values, at most 8, is below all that came before them, 3 at least."""
        return self.size >= count + 3 and max(self.lately(count)) < self._minimum_before[-count]

    # ---- noise

    def error(self, count: int = 0) -> float:
        """Standard error of the difference of two means of `count` values, of 0 of two like `recent`."""
        return self.having(3).spread_of_one * math.sqrt(2 / (count or self.window))

    def scatter(self) -> float:
        """Standard deviation of a value around the line through its neighbours, so that a steady trend is no noise; of
        18 values also around lines through others farther off, as a value may wander. Of few an upper bound."""
        values = self.having(4).lately(BENDS)
        near = _deviation(_second_differences(values, 1)) / math.sqrt(6) * (1 + 4 / self.size)
        return max(near, *(_lagged_scatter(values, apart) for apart in LAGS))

    def item_error(self) -> float:
        """Standard error of a share of items, such as right answers, where the values tell of how many: 0.4375 and
        0.46875 are of 32. 0 where they do not: of shares that were rounded to 4 digits, and of other values.

        It holds for items that count 0 or 1. Scores of partial credit look like those of more items (0, 0.1 and 1 over
        32 items are shares of 320), and the error too small: of 8 values or more it is at least their `scatter`.
        """
        seen, items, exact = self.having(1)._items
        for value in self.lately(min(self.size - seen, RECENT)):
            share = Fraction(value).limit_denominator(MOST_ITEMS)
            fits = 0 <= value <= 1 and abs(share - Fraction(value)) < Fraction(1, 10**9)
            items = math.lcm(items, share.denominator) if fits and 0 < items <= MOST_ITEMS else 0
            exact = exact or abs(round(value, 4) - value) > 1e-9
        self._items = self.size, items, exact
        mean = min(max(sum(self.latest) / len(self.latest), 0.0), 1.0)
        error = math.sqrt(mean * (1 - mean) / items) if exact and 0 < items <= MOST_ITEMS else 0.0
        return max(error, self.scatter()) if error and self.size >= LOWS else error

    # ---- trends

    def rise(self) -> float:
        """How far the mean of the last values is above that of the first, in standard errors; 0 of fewer than 6."""
        if self.size < 2 * WINDOWS[0]:
            return 0.0
        rise, error = self.mean(self.window) - self.first(self.window), self.error(self.window)
        return rise / error if error else math.copysign(math.inf, rise) if rise else 0.0

    def slope(self, count: int = 10) -> float:
        """Least-squares slope of the last `count` values, per value."""
        values = self.having(max(count, 2)).lately(count)
        middle, mean = (len(values) - 1) / 2, fmean(values)
        above = sum((i - middle) * (value - mean) for i, value in enumerate(values))
        return above / sum((i - middle) ** 2 for i in range(len(values)))

    def drop(self, count: int = 2) -> float:
        """How far the mean of the last `count` values, at most 8, is below the best, in standard errors of the noise
        before them, as a collapse is no noise; it needs 10 values more."""
        before = self.having(count + 10)._recent_noise[max(-count - 1, -len(self._recent_noise))]
        return (self.best_mean - self.mean(count)) / (before / math.sqrt(count)) if before else 0.0

    def share(self, count: int = 0) -> float:
        """Where the mean of the last `count` values is between `floor` and `best`: 1 is the best. Of 0 values `recent`
        between `floor` and `sure`."""
        low, best = self.having(max(count, 3)).floor(), self.best_mean if count else self.sure_mean
        return (self.mean(count or self.window) - low) / (best - low) if best > low else 1.0

    def streak(self, compare: Callable[[float, float], bool]) -> int:
        """Number of last values in a row, at most 50, for which `compare(value, the one before)` is true."""
        values = self.having(2).lately(50)[::-1]
        pairs = enumerate(pairwise(values))
        return next((count for count, (now, before) in pairs if not compare(now, before)), len(values) - 1)

    def gap_growth(self, other: Series) -> float:
        """By how much more the first exceeds the other than at the steps of the other's first two values."""
        before = fmean(self.having(5).near(step, 5) - value for step, value in other.having(2).outline[:2])
        return self.mean(5) - other.last() - before

    def distance(self, other: Series, third: Series) -> float:
        """The larger of what the first two differ by, and the absolute third; of what is known."""
        distances = [round(abs(self.last() - other.last()), 9)] if self.size and other.size else []
        distances += [abs(third.last())] if third.size else []
        if not distances:
            raise UnknownValue
        return max(distances)

    # ---- of a run as a whole: fifths of it

    def fifths(self) -> Fifths:
        """Its means of a fifth of the values each. Raises `UnknownValue` of fewer than 6 values."""
        window = min(max(self.having(2 * FIFTHS[0]).size // 5, FIFTHS[0]), FIFTHS[1])
        points, per_mean = [value for _, value in self.outline], max(window // self.stride, 1)
        means = [fmean(points[at : at + per_mean]) for at in range(0, len(points) - per_mean + 1, per_mean)]
        end = self.mean(window)
        return Fifths(self.first(window), max(*means, end), min(*means, end), end, self.error(window))

    def _significant_change(self) -> float:
        """How far the last fifth is above the first; 0 where that may be noise, and of fewer than 6 values."""
        if self.size < 2 * FIFTHS[0]:
            return 0.0
        fifths = self.fifths()
        change = fifths.end - fifths.start
        return change if abs(change) > max(SIGNIFICANT * fifths.end_error, 1e-12) else 0.0

    def gained(self) -> bool:
        """Whether the last fifth of the values is above the first fifth by 4 standard errors."""
        return self._significant_change() > 0

    def lost(self) -> bool:
        """Whether the last fifth of the values is below the first fifth by 4 standard errors."""
        return self._significant_change() < 0


_METHODS = (
    Series.last, Series.mean, Series.average, Series.mean_of_all, Series.first, Series.halfway, Series.span,
    Series.floor, Series.record_low, Series.error, Series.scatter, Series.item_error, Series.slope, Series.drop,
    Series.share, Series.gap_growth, Series.distance, Series.gained, Series.lost,
)  # fmt: skip
_FIFTH = "fifth of the values (3 to 50 of them); it needs 6."
_FORMULAS: Mapping[str, tuple[Callable[..., float], str]] = {
    "known": (lambda metric: metric.size > 0, "Whether there is a finite value."),
    "count": (lambda metric: metric.size, "How many finite values there are."),
    "nonfinite": (
        lambda metric: metric.nonfinite_in_a_row,
        "How many of the latest values in a row are NaN or infinite; no other function counts these.",
    ),
    "nan": (lambda metric: math.isnan(metric.nonfinite_value or 0.0), "Whether the latest value is NaN."),
    "recent": (
        lambda metric: metric.mean(metric.window),
        "Mean of the latest 3 to 50 values, of as many as show a change of 5 % of the span beyond the noise.",
    ),
    "usual": (
        lambda metric, count=20, skip=1: median(metric.having(skip + 3).before(skip, count)),
        "Median of `count` values before the last `skip`; it needs 3 of them.",
    ),
    "lowest": (lambda metric, count=3: min(metric.having(count).lately(count)), "The lowest of the latest values."),
    "largest": (lambda metric, count=3: max(metric.having(count).lately(count)), "The largest of the latest values."),
    "lowest_of_first": (
        lambda metric, count=3: min(metric.having(2).begin[: min(count, metric.size // 2)]),
        "The lowest of the first values, of at most half of them.",
    ),
    "lowest_of_last": (
        lambda metric, count=3: min(metric.having(2).lately(min(count, metric.size // 2))),
        "The lowest of the last values, of at most half of them.",
    ),
    "count_above": (
        lambda metric, bound, count=10: sum(value > bound for value in metric.having(1).lately(count)),
        "How many of the latest `count` values are above the bound.",
    ),
    "expected_max": (
        lambda metric: math.sqrt(2 * math.log(metric.having(1).size)),
        "Expected largest of n standard normal values, n being the number of values so far: sqrt(2 ln n), its bound "
        "from above and its limit for many.",
    ),
    "rose": (
        lambda metric: metric.rise() > SIGNIFICANT,
        "Whether `recent` is above the first values by more than 4 standard errors; not of fewer than 6 values.",
    ),
    "fell": (
        lambda metric: metric.rise() < -SIGNIFICANT,
        "Whether `recent` is below the first values by more than 4 standard errors; not of fewer than 6 values.",
    ),
    "falls_in_a_row": (lambda metric: metric.streak(lt), "How many of the last values are each below the one before."),
    "rises_in_a_row": (lambda metric: metric.streak(gt), "How many of the last values are each above the one before."),
    "start": (lambda metric: metric.fifths().start, f"Mean of the first {_FIFTH}"),
    "end": (lambda metric: metric.fifths().end, f"Mean of the last {_FIFTH}"),
    "top": (lambda metric: metric.fifths().top, f"The highest mean of a {_FIFTH}"),
    "bottom": (lambda metric: metric.fifths().bottom, f"The lowest mean of a {_FIFTH}"),
    "end_error": (
        lambda metric: metric.fifths().end_error,
        f"Standard error of the difference of two means of a {_FIFTH}",
    ),
    "least": (lambda metric: metric.having(1).min, "The smallest of all values."),
    "most": (lambda metric: metric.having(1).max, "The largest of all values."),
    "best": (lambda metric: metric.having(1).best_mean, "The highest `recent` so far."),
    "sure": (
        lambda metric: metric.having(3).sure_mean,
        "The highest `recent` less 2 standard errors, which it owes to chance.",
    ),
    "peak": (lambda metric: metric.having(2).highest_pair, "The highest mean of two neighbours."),
    "trough": (lambda metric: metric.having(2).lowest_pair, "The lowest mean of two neighbours."),
    "noise": (
        lambda metric: metric.having(3).spread_of_one,
        "Standard deviation of a value around the trend, by its neighbours.",
    ),
}


def _documented(function: Callable[..., float], doc: str) -> Callable[..., float]:
    function.__doc__ = doc
    return function


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    **{method.__name__: method for method in _METHODS},
    **{name: _documented(*row) for name, row in _FORMULAS.items()},
}
"""What a condition may call: the first parameter, and those named `other` and `third`, are metrics."""


def _second_differences(values: Sequence[float], apart: int) -> list[float]:
    """Second differences x[i - k] - 2 x[i] + x[i + k], with k = `apart`."""
    triples = zip(values, values[apart:], values[2 * apart :], strict=False)
    return [a - 2 * b + c for a, b, c in triples]


def _lagged_scatter(values: Sequence[float], apart: int) -> float:
    """Standard deviation around the line through values farther off, by the median, as a turn has few; 0 of few."""
    if len(values) < 6 * apart:
        return 0.0
    return median(map(abs, _second_differences(values, apart))) / 0.6745 / math.sqrt(6)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of a value around the trend, from the differences of neighbours."""
    return _deviation([b - a for a, b in pairwise(values)]) / math.sqrt(2)


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation around 0: the largest of the estimates by mean, median and root mean square; 0 of no value."""
    sizes = [abs(x) for x in values]
    if not sizes:
        return 0.0
    mean, square = sum(sizes) / len(sizes), math.sqrt(sum(x * x for x in sizes) / len(sizes))
    return max(mean / 0.7979, median(sizes) / 0.6745, square)
