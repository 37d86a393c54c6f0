"""Numbers as people read them: every screen, page and message writes them here."""

from __future__ import annotations

import math

NOTHING = 1e-12
"""Absolute values below it are rounding errors of sums, shown as 0."""


def compact(value: float, *, sign: bool = False) -> str:
    """Three significant digits, whole numbers from 1,000 on: `0.0123`, `2,043`, `1e-06`; `sign`: also a plus."""
    plus = "+" if sign else ""
    if not math.isfinite(value):
        return f"{value:{plus}}"
    if abs(value) < NOTHING:
        value = 0.0
    whole = 999.5 <= abs(value) < 1e15
    return f"{value:{plus},.0f}" if whole else f"{value:{plus}.3g}"


def span(low: float, high: float) -> str:
    """`-0.00334–0.128`"""
    return f"{compact(low)}–{compact(high)}"


def percent(share: float) -> str:
    """`2,043%` of 20.43"""
    return f"{compact(100 * share)}%"
