"""Curves on a terminal: one line of blocks, or a plot of braille dots with axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from launcher.monitor.console import compact

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille cell, by row and column


class CurveMeans:
    """Any number of values in at most `2 * points` means, each over `stride` of them in their order."""

    def __init__(self, points: int = 64) -> None:
        self._most = 2 * points
        self._stride = 1
        self._means = list[float]()
        self._rest = list[float]()

    def extend(self, values: Iterable[float]) -> None:
        self._rest += values
        if self._stride == 1:
            self._means, self._rest = self._means + self._rest, []
        else:
            whole = len(self._rest) - len(self._rest) % self._stride
            self._means += [_mean(self._rest[i : i + self._stride]) for i in range(0, whole, self._stride)]
            del self._rest[:whole]
        while len(self._means) > self._most:
            if len(self._means) % 2:
                self._rest = [self._means.pop()] * self._stride + self._rest
            self._means = [_mean(self._means[i : i + 2]) for i in range(0, len(self._means), 2)]
            self._stride *= 2

    def points(self) -> list[float]:
        """The means, what is left over last."""
        return [*self._means, _mean(self._rest)] if self._rest else list(self._means)


def _mean(values: Sequence[float]) -> float:
    """Of the finite ones; NaN where there is none."""
    total = sum(values)
    if math.isfinite(total):
        return total / len(values)
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(value / len(finite) for value in finite) if finite else math.nan


def shortened(values: Sequence[float], most: int) -> tuple[float, ...]:
    """At most `most` means of the values."""
    if len(values) <= most:
        return tuple(values)
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    return tuple(_mean(values[a:b]) for a, b in pairwise(edges))


def plot(
    points: Sequence[tuple[float, float]], width: int = 72, height: int = 10, marks: Sequence[float] = ()
) -> list[str]:
    """Lines of text with the curve through `points` (x rising, y). A column where y is no number has × at its foot;
    `marks` are values of x that get a ▲ below the axis."""
    real = [(x, y) for x, y in points if math.isfinite(y)]
    if not points:
        return []
    low, high = (min(y for _, y in real), max(y for _, y in real)) if real else (0.0, 0.0)
    labels = [compact(high), compact(low)]
    margin = max(map(len, labels))
    columns = max(width - margin - 2, 8)
    cells = _cells(points, low, high, columns, height)
    for x, y in points:
        if not math.isfinite(y):
            cells[-1][_column(x, points[0][0], points[-1][0], columns)] = "×"
    lines = []
    for row, line in enumerate(cells):
        name = labels[0] if row == 0 else labels[1] if row == height - 1 else ""
        lines.append(f"{name:>{margin}} ┤{''.join(line)}".rstrip())
    begin, end = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    lines.append(" " * margin + " └" + "─" * columns)
    if marks:
        below = [" "] * columns
        for x in marks:
            below[_column(x, points[0][0], points[-1][0], columns)] = "▲"
        lines.append((" " * (margin + 2) + "".join(below)).rstrip())
    lines.append(" " * (margin + 2) + begin + end.rjust(columns - len(begin)))
    return lines


def _column(x: float, first: float, last: float, columns: int) -> int:
    share = (x - first) / (last - first) if last > first else 0.0
    return min(max(int(share * columns), 0), columns - 1)


def _cells(points: Sequence[tuple[float, float]], low: float, high: float, columns: int, rows: int) -> list[list[str]]:
    """Rows of braille characters: points, joined by straight lines where both are numbers."""
    bits = [[0] * columns for _ in range(rows)]
    wide, tall = columns * 2, rows * 4
    before: tuple[int, int] | None = None
    for x, y in points:
        if not math.isfinite(y):
            before = None
            continue
        share = (y / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5  # halves: no overflow
        here = _column(x, points[0][0], points[-1][0], wide), tall - 1 - min(int(share * tall), tall - 1)
        for column, row in _line(before or here, here):
            bits[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        before = here
    return [[chr(0x2800 + bit) if bit else " " for bit in row] for row in bits]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots between two, both included."""
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * i / count), round(start[1] + (end[1] - start[1]) * i / count))
        for i in range(count + 1)
    ]
