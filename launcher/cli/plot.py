"""Curves on a terminal: one line of blocks, or a plot of braille dots with axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from launcher.monitor.console import compact

BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille cell, by row and column


def sparkline(values: Sequence[float]) -> str:
    """One block for each value, the lowest the least; a value that is no number is a blank."""
    real = [x for x in values if math.isfinite(x)]
    low, high = (min(real), max(real)) if real else (0.0, 0.0)
    span = high / 2 - low / 2  # halves: the difference of two numbers may be none
    if span <= 1e-12 * max(abs(low), abs(high)):  # means of equal values differ by rounding
        span = math.inf
    return "".join(BLOCKS[int((x / 2 - low / 2) / span * 7)] if low <= x <= high else " " for x in values)


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
