"""A metric over a whole run in bounded memory: neighbouring values share a bucket, and no extreme is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

BUCKETS = 240
"""Most buckets of a curve that are kept; while it is read, twice as many."""
LARGEST = 1e150  # of a value in a curve: sums and differences of larger ones would overflow


@dataclass(slots=True)
class Bucket:
    """Neighbouring values: how many, their sum, and the smallest and largest with their steps."""

    first: int
    last: int
    count: int
    total: float
    low: float
    low_step: int
    high: float
    high_step: int

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def step(self) -> float:
        """Its middle."""
        return (self.first + self.last) / 2

    def add(self, step: int, value: float) -> None:
        """One more value; in place, as this runs for every metric of every step."""
        self.last, self.count, self.total = step, self.count + 1, self.total + value
        if value < self.low:
            self.low, self.low_step = value, step
        elif value > self.high:
            self.high, self.high_step = value, step

    def merge(self, other: Bucket) -> Bucket:
        """Both as one; `other` comes later."""
        low, high = min(self, other, key=lambda each: each.low), max(self, other, key=lambda each: each.high)
        return Bucket(
            self.first, other.last, self.count + other.count, self.total + other.total,
            low.low, low.low_step, high.high, high.high_step,
        )  # fmt: skip


@dataclass
class Trace:
    """Finite values of one metric, in the order of the steps."""

    buckets: list[Bucket] = field(default_factory=list)
    stride: int = 1
    """Values that a whole bucket holds."""
    not_finite: int = 0
    below_zero: int = 0
    last: float = math.nan
    """The latest finite value."""

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            self.not_finite += 1
            return
        self.last = value
        self.below_zero += value < 0
        value = max(min(value, LARGEST), -LARGEST)
        if self.buckets and self.buckets[-1].count < self.stride:
            self.buckets[-1].add(step, value)
            return
        self.buckets.append(Bucket(step, step, 1, value, value, step, value, step))
        if len(self.buckets) > 2 * BUCKETS:
            self._halve()

    def _halve(self) -> None:
        pairs = zip(self.buckets[::2], [*self.buckets[1::2], None], strict=False)
        self.buckets = [one.merge(other) if other else replace(one) for one, other in pairs]
        self.stride *= 2

    @property
    def count(self) -> int:
        return sum(bucket.count for bucket in self.buckets)

    @property
    def mean(self) -> float:
        """Of all values; NaN of none."""
        count = self.count
        return math.fsum(bucket.total for bucket in self.buckets) / count if count else math.nan

    @property
    def low(self) -> float:
        return min((bucket.low for bucket in self.buckets), default=math.nan)

    @property
    def high(self) -> float:
        return max((bucket.high for bucket in self.buckets), default=math.nan)

    def shown(self) -> list[Bucket]:
        """At most BUCKETS of them, for a plot."""
        if len(self.buckets) <= BUCKETS:
            return self.buckets
        halved = replace(self, buckets=list(self.buckets))
        halved._halve()
        return halved.buckets

    def ends(self, values: int = 10) -> tuple[float, float]:
        """Means of about so many first and last values, at most half of all each; NaN of none."""
        return _mean_of(self.buckets, min(values, self.count // 2)), self.late(min(values, self.count // 2))

    def late(self, values: int = 10) -> float:
        """Mean of about so many last values: of whole buckets."""
        return _mean_of(self.buckets[::-1], values)


def _mean_of(buckets: Sequence[Bucket], values: int) -> float:
    total, count = 0.0, 0
    for bucket in buckets:
        if count and count >= values:
            break
        total, count = total + bucket.total, count + bucket.count
    return total / count if count else math.nan
