"""Whether two runs differ on the same held-out items: tests and intervals for paired scores.

Scores of 0 and 1: McNemar's exact test (McNemar 1947, Psychometrika 12; the conditional binomial form), and Agresti and
Min's interval of the difference of two paired shares (Agresti & Min 2005, Statistics in Medicine 24).
Other scores: Student's paired t test and its interval (Student 1908, Biometrika 6); as their signs could all have come
by chance, p is at least that of the sign test of as many differences.
Several runs of each of two settings: a t test over the means of the runs, whose variance is pooled, as another seed
trains another model; where single scores are known, what the settings do to other prompts counts too, less what chance
in single answers adds to both (Clark 1973, J. Verbal Learning 12: items and subjects as random effects; Satterthwaite
1946 for the degrees of freedom).
Without common items: an interval of the difference from those of the two means (Newcombe 1998, method 10; Zou & Donner
2008), and a normal test. Several comparisons: Holm 1979.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
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
    """Each score by its prompt; equal rows are counted."""
    count, found = Counter[tuple[str, str]](), dict[PromptKey, float]()
    for source, digest, score in items:
        count[source, digest] += 1
        found[source, digest, count[source, digest]] = score
    return found


def by_prompt(events: Iterable[HeldOutScores]) -> dict[PromptKey, float]:
    return numbered(
        (each.data_source, *item) for each in events for item in zip(each.prompts, each.scores, strict=True)
    )


def pairs_of(a: Mapping[PromptKey, float], b: Mapping[PromptKey, float]) -> list[tuple[str, float, float]]:
    """Data source and both scores of each prompt that has one in both, in the order of the first."""
    both = [key for key, score in a.items() if math.isfinite(score) and math.isfinite(b.get(key, math.nan))]
    return [(key[0], a[key], b[key]) for key in both]


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided p of `only_a` and `only_b` discordant pairs, which under the null hypothesis are a fair coin's."""
    n, ways, tail = only_a + only_b, 1, 0
    for k in range(min(only_a, only_b) + 1):
        tail += ways
        ways = ways * (n - k) // (k + 1)  # of the integers, as 2^n is no float
    return min(1.0, 2 * tail / 2**n)


def agresti_min(only_a: int, only_b: int, n: int) -> tuple[float, float]:
    """95 % interval of (only_b - only_a) / n: Wald's, with 1/2 added to each of the four cells."""
    b, c, total = only_b + 0.5, only_a + 0.5, n + 2.0
    apart = b - c
    spread = Z95 * math.sqrt(b + c - apart * apart / total) / total
    return max(apart / total - spread, -1.0), min(apart / total + spread, 1.0)


def paired_t(differences: Sequence[float]) -> tuple[float | None, float | None, float]:
    """95 % interval of the mean of paired differences, None of a single one, and the two-sided p."""
    n, changed = len(differences), sum(x != 0 for x in differences)
    mean = math.fsum(differences) / n
    least = min(1.0, 2.0 ** (1 - changed))  # of the sign test, where all point one way
    if n < 2:
        return None, None, least
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in differences) / (n - 1) / n)
    reach = t_quantile(ALPHA, n - 1) * error
    return mean - reach, mean + reach, max(t_tails(abs(mean) / error, n - 1), least) if error else least


def newcombe(a: HeldOut, b: HeldOut) -> tuple[float, float] | None:
    """95 % interval of `b - a` from the intervals of both; None where one has none."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    apart = b.value - a.value
    down = math.hypot(b.value - b.low, a.high - a.value)
    return apart - down, apart + math.hypot(b.high - b.value, a.value - a.low)


def compare_paired(a: Sequence[float], b: Sequence[float]) -> ScoreDifference:
    """Scores of the same items, in the same order. Raises `ValueError` where their numbers differ or are 0."""
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} and {len(b)} scores; use one of each run for each item")
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
    ends = newcombe(a, b)
    if ends is None:
        return ScoreDifference("not tested", 0, a.value, b.value, None, None, None)
    apart = b.value - a.value
    error = (apart - ends[0] if apart > 0 else ends[1] - apart) / Z95  # of the end that is nearer to 0
    p = 2 * (1 - NormalDist().cdf(abs(apart) / error)) if error else float(apart == 0)
    return ScoreDifference("two intervals", 0, a.value, b.value, ends[0], ends[1], p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the same order: below alpha where the step-down procedure rejects."""
    ordered = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ordered):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = most
    return adjusted


# ---- several runs of each setting


@dataclass(frozen=True)
class RunScores:
    """The held-out score of one run, and that of each prompt where it is known."""

    mean: float
    prompts: Mapping[PromptKey, float] = field(default_factory=dict)


def compare_replicates(
    a: Sequence[RunScores], b: Sequence[RunScores], all_runs: Sequence[Sequence[RunScores]]
) -> ScoreDifference:
    """Runs of two settings; the variance between runs is that of `all_runs`, those of each setting that was tried. Not
    tested where no setting has two runs."""
    mean_a, mean_b = (math.fsum(run.mean for run in side) / len(side) for side in (a, b))
    squares, freedom = 0.0, sum(len(side) - 1 for side in all_runs)
    for side in all_runs:
        middle = math.fsum(run.mean for run in side) / len(side)
        squares += math.fsum((run.mean - middle) ** 2 for run in side)
    share = 1 / len(a) + 1 / len(b)
    of_runs = squares / freedom * share if freedom else 0.0
    of_items, items = _variance_of_items(a, b, share)
    if not of_runs:  # one run of each, or runs that are equal to the last digit
        return ScoreDifference("not tested", 0, mean_a, mean_b, None, None, None)
    variance = of_runs + of_items
    effective = variance**2 / (of_runs**2 / freedom + (of_items**2 / (items - 1) if items > 1 else 0.0))
    apart, error = mean_b - mean_a, math.sqrt(variance)
    reach = t_quantile(ALPHA, effective) * error
    p = t_tails(abs(apart) / error, effective)
    ends = apart - reach, apart + reach
    return ScoreDifference("t test over runs", items, mean_a, mean_b, *ends, p, freedom=effective)


def _variance_of_items(a: Sequence[RunScores], b: Sequence[RunScores], share: float) -> tuple[float, int]:
    """Of the difference, as far as other prompts would give another; and how many prompts all runs have. What chance in
    single answers adds is in the variance between runs already, and taken off."""
    keys = [key for key in a[0].prompts if all(math.isfinite(run.prompts.get(key, math.nan)) for run in (*a, *b))]
    if len(keys) < 2:
        return 0.0, 0
    count, residual, freedom, means = len(keys), 0.0, 0, list[list[float]]()
    for side in (a, b):
        table = [[run.prompts[key] for key in keys] for run in side]
        of_keys = [math.fsum(column) / len(side) for column in zip(*table, strict=True)]
        middle, freedom = math.fsum(of_keys) / count, freedom + (len(side) - 1) * (count - 1)
        for row in table:
            own = math.fsum(row) / count - middle
            residual += math.fsum((x - of_key - own) ** 2 for x, of_key in zip(row, of_keys, strict=True))
        means.append(of_keys)
    apart = [y - x for x, y in zip(*means, strict=True)]
    middle = math.fsum(apart) / count
    whole = math.fsum((x - middle) ** 2 for x in apart) / (count - 1) / count
    chance = residual / freedom * share / count if freedom else 0.0
    return max(whole - chance, 0.0), count


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
    """Where both tails together hold this share."""
    low, high = 0.0, 1e4
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > tails else (low, middle)
    return high
