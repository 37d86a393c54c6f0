"""Whether two runs differ on the same held-out items: tests and intervals for paired scores.

Scores of 0 and 1: McNemar's exact test (McNemar 1947, Psychometrika 12; the conditional binomial form), and Agresti and
Min's interval of the difference of two paired shares (Agresti & Min 2005, Statistics in Medicine 24).
Other scores: Student's paired t test and its interval (Student 1908, Biometrika 6); as their signs could all have come
by chance, p is at least that of the sign test of as many differences.
Several runs of each of two settings: Student's t test over the scores of the runs, whose variance is pooled, as another
seed trains another model. It is about other seeds on the same held-out rows.
Without common items: an interval of the difference from those of the two means (Newcombe 1998, method 10; Zou & Donner
2008), and a normal test. Several comparisons: Holm 1979.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance
from typing import Literal

from launcher.core.events import HeldOutScores
from launcher.core.metrics import Z95, HeldOut

ALPHA = 0.05

Method = Literal["McNemar exact", "paired t test", "two intervals", "t test over runs", "not tested"]


@dataclass(frozen=True)
class ScoreDifference:
    """The mean score of one run less that of another."""

    method: Method
    items: int
    """Held-out items that both have; 0 where they are not paired."""
    a: float
    b: float
    low: float | None
    high: float | None
    """Ends of the 95 % interval of `b - a`."""
    p: float | None
    only_a: int | None = None
    """Of scores 0 and 1: items that only A has right."""
    only_b: int | None = None
    freedom: float | None = None
    """Degrees of freedom of a t test."""

    @property
    def value(self) -> float:
        return self.b - self.a

    @property
    def paired(self) -> bool:
        return self.items > 0


PromptKey = tuple[str, str, int]
"""Data source, digest of prompt and ground truth, and number among equal rows."""


def numbered(items: Iterable[tuple[str, str, float]]) -> dict[PromptKey, float]:
    """Scores by prompt; equal rows are numbered from 1 to keep them distinct."""
    count, scores = Counter[tuple[str, str]](), dict[PromptKey, float]()
    for source, digest, score in items:
        count[source, digest] += 1
        scores[source, digest, count[source, digest]] = score
    return scores


def by_prompt(events: Iterable[HeldOutScores]) -> dict[PromptKey, float]:
    return numbered(
        (event.data_source, *item) for event in events for item in zip(event.prompts, event.scores, strict=True)
    )


def pairs_of(a: Mapping[PromptKey, float], b: Mapping[PromptKey, float]) -> list[tuple[str, float, float]]:
    """(data source, score in a, score in b) of each prompt that has a finite score in both, in the order of `a`."""
    both = [key for key, score in a.items() if math.isfinite(score) and math.isfinite(b.get(key, math.nan))]
    return [(key[0], a[key], b[key]) for key in both]


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided p of `only_a` and `only_b` discordant pairs; the null hypothesis is a probability of 1/2 for either."""
    n, binomial, tail = only_a + only_b, 1, 0
    for k in range(min(only_a, only_b) + 1):
        tail += binomial
        binomial = binomial * (n - k) // (k + 1)  # integers, as 2^n may exceed a float
    return min(1.0, 2 * tail / 2**n)


def agresti_min(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """95 % interval of (only_b - only_a) / n: Wald's, with 1/2 added to each of the four cells."""
    b, c, total = only_b + 0.5, only_a + 0.5, n + 2.0
    difference = b - c
    spread = Z95 * math.sqrt(b + c - difference * difference / total) / total
    return max(difference / total - spread, -1.0), min(difference / total + spread, 1.0)


def paired_t(differences: Sequence[float]) -> tuple[float | None, float | None, float]:
    """(low, high, p): 95 % interval of the mean of paired differences, None of a single one, and the two-sided p."""
    n, changed = len(differences), sum(x != 0 for x in differences)
    mean = math.fsum(differences) / n
    sign_test_p = min(1.0, 2.0 ** (1 - changed))  # p of the sign test if all changes have one sign
    if n < 2:
        return None, None, sign_test_p
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    margin = t_quantile(ALPHA, n - 1) * error
    return mean - margin, mean + margin, max(t_tails(abs(mean) / error, n - 1), sign_test_p) if error else sign_test_p


def newcombe(a: HeldOut, b: HeldOut) -> tuple[float, float] | None:
    """95 % interval of `b - a` from the intervals of both (method 10); None where one has no interval."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    difference = b.value - a.value
    below = math.hypot(b.value - b.low, a.high - a.value)
    return difference - below, difference + math.hypot(b.high - b.value, a.value - a.low)


def compare_paired(a: Sequence[float], b: Sequence[float]) -> ScoreDifference:
    """Scores of the same items, one at least, in the same order."""
    n, mean_a, mean_b = len(a), math.fsum(a) / len(a), math.fsum(b) / len(b)
    if {*a, *b} <= {0.0, 1.0}:
        only_a = sum(one > other for one, other in zip(a, b, strict=True))
        only_b = sum(one < other for one, other in zip(a, b, strict=True))
        bounds = agresti_min(only_a, only_b, n)
        return ScoreDifference(
            "McNemar exact", n, mean_a, mean_b, *bounds, mcnemar_exact(only_a, only_b), only_a, only_b
        )
    test = paired_t([other - one for one, other in zip(a, b, strict=True)])
    return ScoreDifference("paired t test", n, mean_a, mean_b, *test)


def compare_unpaired(a: HeldOut, b: HeldOut) -> ScoreDifference:
    """Two validations, each with its own interval; not tested where one has none."""
    interval = newcombe(a, b)
    if interval is None:
        return ScoreDifference("not tested", 0, a.value, b.value, None, None, None)
    difference = b.value - a.value
    error = (difference - interval[0] if difference > 0 else interval[1] - difference) / Z95  # from the end nearer to 0
    p = 2 * (1 - NormalDist().cdf(abs(difference) / error)) if error else float(difference == 0)
    return ScoreDifference("two intervals", 0, a.value, b.value, interval[0], interval[1], p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the same order; one below alpha is rejected by the step-down procedure (Holm 1979)."""
    ordered = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ordered):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


# ---- several runs of each setting


def compare_replicates(a: Sequence[float], b: Sequence[float], all_runs: Sequence[Sequence[float]]) -> ScoreDifference:
    """Compare the scores of the runs of two settings; the variance between runs is pooled over `all_runs`, the runs of
    each setting that was tried. Not tested where no setting has two runs."""
    mean_a, mean_b, freedom = fmean(a), fmean(b), sum(len(side) - 1 for side in all_runs)
    squared_sum = math.fsum(variance(side) * (len(side) - 1) for side in all_runs if len(side) > 1)
    if not squared_sum:  # one run of each, or runs that are equal to the last digit
        return ScoreDifference("not tested", 0, mean_a, mean_b, None, None, None)
    difference, error = mean_b - mean_a, math.sqrt(squared_sum / freedom * (1 / len(a) + 1 / len(b)))
    margin = t_quantile(ALPHA, freedom) * error
    p = t_tails(abs(difference) / error, freedom)
    interval = difference - margin, difference + margin
    return ScoreDifference("t test over runs", 0, mean_a, mean_b, *interval, p, freedom=freedom)


def t_tails(t: float, freedom: float) -> float:
    """Both tails of Student's distribution beyond t >= 0: with x = sqrt(freedom) tan(angle) its density is a power of
    the cosine (Simpson's rule)."""

    def area(start: float) -> float:
        count, end = 400, math.pi / 2
        width = (end - start) / count
        values = [max(math.cos(start + width * place), 0.0) ** (freedom - 1) for place in range(count + 1)]
        return width / 3 * (values[0] + values[-1] + 4 * math.fsum(values[1:-1:2]) + 2 * math.fsum(values[2:-1:2]))

    return min(area(math.atan(t / math.sqrt(freedom))) / area(0.0), 1.0)


def t_quantile(tails: float, freedom: float) -> float:
    """The t >= 0 beyond which both tails of Student's distribution hold the probability `tails`, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > tails else (low, middle)
    return high
