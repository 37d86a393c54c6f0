"""A metric over a whole run in bounded memory: neighbouring values share a bucket, and no extreme is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

BUCKETS = 480
"""Most buckets of a curve; before one more is added, pairs of them are merged."""
LARGEST = 1e150  # values are clipped to it, as sums and differences of larger ones may overflow


@dataclass(slots=True)
class Bucket:
    """Neighbouring values: how many are finite and their sum, how many are not, the smallest and largest with their
    steps."""

    first: int
    last: int
    count: int = 0
    total: float = 0.0
    lost: int = 0
    low: float = math.inf
    low_step: int = 0
    high: float = -math.inf
    high_step: int = 0

    @property
    def mean(self) -> float:
        """Mean of the finite values; NaN without any."""
        return self.total / self.count if self.count else math.nan

    @property
    def step(self) -> float:
        """The middle of its steps."""
        return (self.first + self.last) / 2

    def add(self, step: int, value: float) -> None:
        """Add a value, in place, as this runs for every metric of every step."""
        self.last = step
        if not math.isfinite(value):
            self.lost += 1
            return
        self.count, self.total = self.count + 1, self.total + max(min(value, LARGEST), -LARGEST)
        if value < self.low:
            self.low, self.low_step = value, step
        if value > self.high:
            self.high, self.high_step = value, step

    def merge(self, other: Bucket) -> Bucket:
        """Both buckets as one; `other` is the later one."""
        low, high = min(self, other, key=lambda bucket: bucket.low), max(self, other, key=lambda bucket: bucket.high)
        count, total, lost = self.count + other.count, self.total + other.total, self.lost + other.lost
        return Bucket(self.first, other.last, count, total, lost, low.low, low.low_step, high.high, high.high_step)


@dataclass
class Trace:
    """The values of one metric, in the order of the steps."""

    buckets: list[Bucket] = field(default_factory=list)
    stride: int = 1
    """Values in a full bucket."""
    values: int = 0
    not_finite: int = 0
    first: float = math.nan
    latest: float = math.nan
    """The latest value, finite or not; `last` is the latest finite one."""
    last: float = math.nan

    def add(self, step: int, value: float) -> None:
        if not self.values:
            self.first = value
        self.values, self.latest = self.values + 1, value
        if math.isfinite(value):
            self.last = value
        else:
            self.not_finite += 1
        if not self.buckets or self.buckets[-1].count + self.buckets[-1].lost >= self.stride:
            self.buckets.append(Bucket(step, step))
        self.buckets[-1].add(step, value)
        if len(self.buckets) > BUCKETS:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        pairs = zip(self.buckets[::2], [*self.buckets[1::2], None], strict=False)
        self.buckets = [bucket.merge(following) if following else bucket for bucket, following in pairs]
        self.stride *= 2

    @property
    def count(self) -> int:
        """Number of finite values."""
        return self.values - self.not_finite

    @property
    def mean(self) -> float:
        """Mean of all finite values; NaN without any."""
        return math.fsum(bucket.total for bucket in self.buckets) / self.count if self.count else math.nan

    @property
    def low(self) -> float:
        return self.lowest.low if self.count else math.nan

    @property
    def high(self) -> float:
        return self.largest.high if self.count else math.nan

    @property
    def lowest(self) -> Bucket:
        """The bucket with the smallest value; the first of several. Raises `ValueError` without any value."""
        return min(self.buckets, key=lambda bucket: bucket.low)

    @property
    def largest(self) -> Bucket:
        return max(self.buckets, key=lambda bucket: bucket.high)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(step, mean) of each bucket; NaN where it has no finite value."""
        return [(bucket.step, bucket.mean) for bucket in self.buckets]

    def ends(self, values: int = 10) -> tuple[float, float]:
        """Means of about `values` first and last values, of at most half of all each; NaN without any."""
        return _mean_of_values(self.buckets, min(values, self.count // 2)), self.late(min(values, self.count // 2))

    def late(self, values: int = 10) -> float:
        """Mean of about `values` last values, as whole buckets count."""
        return _mean_of_values(self.buckets[::-1], values)


def _mean_of_values(buckets: Sequence[Bucket], values: int) -> float:
    total, count = 0.0, 0
    for bucket in buckets:
        if count and count >= values:
            break
        total, count = total + bucket.total, count + bucket.count
    return total / count if count else math.nan


def shortened(values: Sequence[float], most: int) -> tuple[float, ...]:
    """At most `most` means over neighbouring finite values; NaN where none of the neighbours is finite."""
    edges = [round(i * len(values) / most) for i in range(most + 1)] if len(values) > most else range(len(values) + 1)
    parts = ([value for value in values[a:b] if math.isfinite(value)] for a, b in pairwise(edges))
    return tuple(math.fsum(value / len(part) for value in part) if part else math.nan for part in parts)
