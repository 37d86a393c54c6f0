"""What several scored answers to a prompt say about a policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def best_of(scores: Sequence[float], k: int) -> float:
    """Expected best of `k` answers drawn without return from those given; for scores of 0 and 1 this is pass@k.

    Unbiased (arXiv:2107.03374, eq. 1, of which this is the form for any scores): the i-th smallest of n is the
    best in C(i - 1, k - 1) of C(n, k) draws.
    """
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"k is {k} of {n} scores; use 1 to {n}")
    draws = math.comb(n, k)
    return sum(math.comb(i, k - 1) / draws * score for i, score in enumerate(sorted(scores)))


def majority(scores: Sequence[float], output: Sequence[Hashable]) -> float:
    """Score of what most answers say; of equals, of what was said first."""
    winner, _ = Counter(output).most_common(1)[0]
    return scores[output.index(winner)]


def wilson(share: float, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Bounds of the 95 % interval of a share of `n` trials (Wilson 1927); (0, 1) of none."""
    if n == 0:
        return 0.0, 1.0
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def powers(n: int) -> list[int]:
    """1, 2, 4, ... and n: the numbers of answers that are looked at."""
    found = [1 << bit for bit in range(n.bit_length())]
    return found if found[-1] == n else [*found, n]
