"""The values of one metric so far, in bounded memory, and what can be said of them: means, trends and noise.

A run is compared with its own start, in units of its own noise: from step to step a metric of a small batch differs
more than one of a large batch, and a rule must not call that a change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import islice, pairwise
from statistics import fmean, median

START = 64  # first values that are kept
RECENT = 256  # last values that are kept
NOISE = 200  # last values that the noise is measured on
SIGNIFICANT = 4.0  # standard errors; a run is judged at hundreds of steps
LOWS = 8  # last values that may be compared with all before them
CHANCE = 2.0  # standard errors by which the highest of many means exceeds what it stands for
LATER = 1.1  # times as many values, at which the noise is measured again
SHARPEST = 0.05  # of a metric's range: changes that a window's mean has to show
WINDOWS = (3, 50)  # fewest and most values of a window
OUTLINE = 128  # most points of an outline
BENDS = 50  # last values whose scatter is measured
LAGS = (3, 5, 8)  # how far those are off that a value is compared with
MOST_ITEMS = 5_000  # of which a held-out score is known to be a share


class Series:
    """The first `START` and last `RECENT` values of a metric, with the steps of the latter; running extremes of all.

    A value that is not finite is counted, and left out of everything else.
    """

    def __init__(self) -> None:
        self.start: list[float] = []
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.steps: deque[int] = deque(maxlen=RECENT)
        self.count = 0
        self.nonfinite: float | None = None
        """The latest value, where it is NaN or infinite."""
        self.nonfinite_in_a_row = 0
        self.least, self.most = math.inf, -math.inf
        self.trough, self.peak = math.inf, -math.inf
        """Lowest and highest mean of two neighbours."""
        self.outline: list[tuple[int, float]] = []
        """The whole series as means of `stride` values each, with the step of the last of them."""
        self.stride = 1
        self.best = -math.inf
        """Highest mean of a window so far."""
        self.sure = -math.inf
        """The same less 2 standard errors, which the highest of many means owes to chance."""
        self.noise = 0.0
        """Standard deviation of a value around the trend; of few values an upper bound."""
        self.lowest: float | None = None
        """Lowest single value that a mean was of, where it is known."""
        self.spread = 0.0
        """Largest standard deviation of the values that a mean was of, where it is known."""
        self.window = WINDOWS[0]
        """Values whose mean shows a change of `SHARPEST` of the metric's span: 3 to 50."""
        self._noise, self._noise_count, self._owed = 0.0, 0, 0.0  # measured of so many values
        self._waiting, self._waits = 0.0, 0  # sum and number of the values that are not yet in the outline
        self._scatter = (0, 0.0)  # measured at so many values
        self._items = (0, 1, False)  # of so many values: how many items they are shares of, and whether they are exact
        self._least_until: deque[float] = deque(maxlen=LOWS)
        self._noise_until: deque[float] = deque([0.0], maxlen=LOWS)

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self.nonfinite = value
            self.nonfinite_in_a_row += 1
            return
        self.nonfinite, self.nonfinite_in_a_row = None, 0
        self.count += 1
        if self.recent:
            pair = (self.recent[-1] + value) / 2
            self.trough, self.peak = min(self.trough, pair), max(self.peak, pair)
        self._draw(step, value)
        if len(self.start) < START:
            self.start.append(value)
        self.recent.append(value)
        self.steps.append(step)
        self._least_until.append(self.least)
        self.least, self.most = min(self.least, value), max(self.most, value)
        if self.count >= LATER * self._noise_count:
            self._noise, self._noise_count = noise(self.lately(NOISE)), self.count
            self.noise, self.window = self._noise * (1 + 8 / self.count), self._find_window()
            self._owed = CHANCE * self.noise / math.sqrt(self.window)
        self._noise_until.append(self._noise)
        if self.count >= WINDOWS[0]:
            mean = self.mean(self.window)
            self.best, self.sure = max(self.best, mean), max(self.sure, mean - self._owed)

    def _draw(self, step: int, value: float) -> None:
        self._waiting, self._waits = self._waiting + value, self._waits + 1
        if self._waits < self.stride:
            return
        self.outline.append((step, self._waiting / self.stride))
        self._waiting, self._waits = 0.0, 0
        if len(self.outline) == OUTLINE:
            halves = zip(self.outline[::2], self.outline[1::2], strict=True)
            self.outline = [(later, (a + b) / 2) for (_, a), (later, b) in halves]
            self.stride *= 2

    @property
    def last(self) -> float:
        return self.recent[-1]

    def lately(self, count: int) -> list[float]:
        """The last `count` values, or as many as there are."""
        values = list(islice(reversed(self.recent), count))
        values.reverse()
        return values

    def mean(self, count: int) -> float:
        values = self.lately(count)
        return sum(values) / len(values)

    def before(self, skip: int, count: int) -> list[float]:
        """The `count` values that came before the last `skip`."""
        end = len(self.recent) - skip
        return list(islice(self.recent, max(end - count, 0), max(end, 0)))

    def halfway(self, count: int) -> float:
        """Median of the last `count` points of the outline's first half."""
        middle = self.count // 2 // self.stride
        return median(each for _, each in self.outline[max(middle - count, 0) : middle])

    def near(self, step: int, count: int) -> float:
        """Mean of the last `count` points of the outline up to `step`, of the first where there are fewer."""
        end = max(bisect_right(self.outline, (step, math.inf)), count)
        return fmean(each for _, each in self.outline[max(end - count, 0) : end])

    def first(self, count: int) -> float:
        """Mean of the first `count` values."""
        return fmean(self.start[:count])

    @property
    def span(self) -> float:
        """From the smallest value to the largest, 0 among them."""
        return max(self.most, 0.0) - min(self.least, 0.0)

    def see_parts(self, lowest: float | None, spread: float | None) -> None:
        """What is known of the values whose mean was added: the lowest, and their standard deviation."""
        if lowest is not None and math.isfinite(lowest):
            self.lowest = lowest if self.lowest is None else min(self.lowest, lowest)
        if spread is not None and math.isfinite(spread):
            self.spread = max(self.spread, spread)

    @property
    def floor(self) -> float:
        """What the metric is when all is lost: the lowest single value; where that is unknown 0, or, if the metric has
        been below 0, its least value or 2 standard deviations below the best: rewards with it are as far apart."""
        if self.lowest is not None:
            return min(self.lowest, self.least)
        return min(self.least, self.best - 2 * self.spread) if self.least < 0 else 0.0

    @property
    def scatter(self) -> float:
        """Standard deviation of a value around the line through its neighbours, so that a steady trend is no noise; of
        few values an upper bound. Of many also around the line through others farther off, as a value may wander."""
        if self._scatter[0] != self.count:
            values = self.lately(BENDS)
            near = _deviation(_second_differences(values, 1)) / math.sqrt(6) * (1 + 4 / self.count)
            self._scatter = self.count, max(near, *(_lagged_scatter(values, apart) for apart in LAGS))
        return self._scatter[1]

    @property
    def item_error(self) -> float:
        """Standard error of a share of items, such as right answers, where the values tell of how many: 0.4375 and
        0.46875 are of 32. 0 where they do not: of shares that were rounded to 4 digits, and of other values.

        It holds for items that count 0 or 1. Scores of partial credit look like those of more items (0, 0.1 and 1 over
        32 items are shares of 320), and the error too small: of 8 values or more it is at least their `scatter`.
        """
        seen, items, exact = self._items
        for value in self.lately(min(self.count - seen, RECENT)):
            share = Fraction(value).limit_denominator(MOST_ITEMS)
            fits = 0 <= value <= 1 and abs(share - Fraction(value)) < Fraction(1, 10**9)
            items = math.lcm(items, share.denominator) if fits and 0 < items <= MOST_ITEMS else 0
            exact = exact or abs(round(value, 4) - value) > 1e-9
        self._items = self.count, items, exact
        mean = min(max(sum(self.recent) / len(self.recent), 0.0), 1.0)
        error = math.sqrt(mean * (1 - mean) / items) if exact and 0 < items <= MOST_ITEMS else 0.0
        return max(error, self.scatter) if error and self.count >= LOWS else error

    @property
    def expected_max(self) -> float:
        """Expected largest of n standard normal values, n being the number of values so far: sqrt(2 ln n), its bound
        from above and its limit for many."""
        return math.sqrt(2 * math.log(max(self.count, 1)))

    def _find_window(self) -> int:
        if not self.span or not self.noise:
            return WINDOWS[0]
        needed = math.ceil(min(self.noise / (SHARPEST * self.span), WINDOWS[1]) ** 2)
        return min(max(needed, WINDOWS[0]), WINDOWS[1], max(self.count // 4, WINDOWS[0]))

    def error(self, count: int) -> float:
        """Standard error of the difference of two means of `count` values."""
        return self.noise * math.sqrt(2 / count)

    def rise(self) -> float:
        """How far the mean of the last values is above that of the first, in standard errors; 0 of fewer than 6."""
        if self.count < 2 * WINDOWS[0]:
            return 0.0
        rise, error = self.mean(self.window) - self.first(self.window), self.error(self.window)
        return rise / error if error else math.copysign(math.inf, rise) if rise else 0.0

    def drop(self, count: int) -> float:
        """How far the mean of the last `count` values, at most `LOWS`, is below the best, in standard errors: of the
        noise before them, as a collapse is no noise."""
        before = self._noise_until[max(-count - 1, -len(self._noise_until))]
        return (self.best - self.mean(count)) / (before / math.sqrt(count)) if before else 0.0

    def slope(self, count: int) -> float:
        """Least-squares slope of the last `count` values, per value."""
        values = self.lately(count)
        if len(values) < 2:
            return 0.0
        middle, mean = (len(values) - 1) / 2, fmean(values)
        above = sum((i - middle) * (value - mean) for i, value in enumerate(values))
        return above / sum((i - middle) ** 2 for i in range(len(values)))

    def is_record_low(self, count: int) -> bool:
        """Whether each of the last `count` values, at most `LOWS`, is below all that came before them."""
        return max(self.lately(count)) < self._least_until[-count]

    def in_a_row(self, compare: Callable[[float, float], bool]) -> int:
        """How many of the last values, at most 50, each compare so with the one before."""
        values = self.lately(50)[::-1]
        pairs = enumerate(pairwise(values))
        return next((count for count, (now, before) in pairs if not compare(now, before)), len(values) - 1)

    def since(self, count: int) -> int:
        """Step of the value that is `count` values back, or of the first that is kept."""
        return self.steps[max(len(self.steps) - count, 0)] if self.steps else 0


def _second_differences(values: Sequence[float], apart: int) -> list[float]:
    """How far each value is off the line through those `apart` before and behind it, times 2."""
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
    """Standard deviation around 0 by the mean, median or root mean square of sizes, whichever is largest; 0 of none."""
    sizes = [abs(x) for x in values]
    if not sizes:
        return 0.0
    mean, square = sum(sizes) / len(sizes), math.sqrt(sum(x * x for x in sizes) / len(sizes))
    return max(mean / 0.7979, median(sizes) / 0.6745, square)
