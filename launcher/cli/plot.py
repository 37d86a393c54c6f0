"""Curves on a terminal: one line of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """One block for each value, scaled between the lowest and the highest; NaN and infinities are blanks."""
    real = [x for x in values if math.isfinite(x)]
    low, high = (min(real), max(real)) if real else (0.0, 0.0)
    span = high / 2 - low / 2  # halves, as the difference of two floats may overflow
    if span <= 1e-12 * max(abs(low), abs(high)):  # means of equal values differ by rounding
        span = math.inf
    return "".join(BLOCKS[int((x / 2 - low / 2) / span * 7)] if low <= x <= high else " " for x in values)
