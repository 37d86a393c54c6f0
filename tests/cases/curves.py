"""Series of a metric, made up: straight lines, growth, waves, and values that come now and then."""

from __future__ import annotations

from collections.abc import Iterable


def line(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * number / (count - 1) for number in range(count)]


def growth(first: float, factor: float, count: int) -> list[float]:
    return [first * factor**number for number in range(count)]


def around(middle: float, apart: float, count: int) -> list[float]:
    """By turns below and above."""
    return [middle + apart * (1 if number % 2 else -1) for number in range(count)]


def every(count: int, values: Iterable[float]) -> list[float | None]:
    """The values with `count - 1` steps without one before each."""
    return [each for value in values for each in (*([None] * (count - 1)), value)]
