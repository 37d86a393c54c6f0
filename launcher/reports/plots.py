"""A curve as SVG that stands in a page (`plot.svg.j2`): no script, no font, no file. Colours are CSS variables of the
page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from launcher.core.metrics import HeldOut
from launcher.reports.render import render
from launcher.views.trace import BUCKETS, Trace

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 24
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """The curve of a plot."""

    points: Points
    bounds: Sequence[tuple[float, float, float]] = ()
    """(step, lower, upper): the interval of each point, or the extremes of each bucket."""
    intervals: bool = False
    """Whether `bounds` are intervals, drawn as bars, and the points have marks."""

    @property
    def outline(self) -> Points:
        """A polygon: along the upper ends of `bounds`, and back along the lower ends."""
        return [(x, high) for x, _, high in self.bounds] + [(x, low) for x, low, _ in reversed(self.bounds)]


def line_of(trace: Trace) -> Line:
    """A line through the means of a trace's buckets, with their extremes where a bucket holds several values."""
    buckets = [bucket for bucket in trace.buckets if bucket.count]
    several = any(bucket.count > 1 for bucket in buckets)
    bounds = [(bucket.step, bucket.low, bucket.high) for bucket in buckets] if several else []
    return Line([(bucket.step, bucket.mean) for bucket in buckets], bounds)


def line_of_validations(validations: Sequence[HeldOut]) -> Line:
    """A line through at most BUCKETS validations, evenly chosen, and the last."""
    measured = [*validations[: -1 : len(validations) // BUCKETS + 1], *validations[-1:]]
    bounds = [(each.step, each.low, each.high) for each in measured if each.low is not None and each.high is not None]
    return Line([(each.step, each.value) for each in measured], bounds, intervals=True)


def plot(line: Line, label: str, target: float | None = None) -> Markup:
    """SVG of a curve over steps; `label` is for screen readers, `target` a horizontal line. Empty without any point."""
    if not line.points:
        return Markup("")
    first, last, bottom, top = _ranges(line, target)

    def x(step: float) -> float:
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = value / (top - bottom) - bottom / (top - bottom)  # a difference may overflow
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    svg = render(
        "plot.svg.j2", label=label, line=line, target=target, width=WIDTH,
        height=HEIGHT, left=LEFT, right=WIDTH - RIGHT, x=lambda step: f"{x(step):.1f}",
        y=lambda value, below=0: f"{y(value) + below:.1f}",
        path=lambda points: "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points),
        rows=[(value, _tick(value)) for value in ticks(bottom, top, 4)],
        columns=[(value, _tick(value)) for value in ticks(first, last, 5) if value == int(value)],
    )  # fmt: skip
    return Markup(svg.strip())  # safe: only numbers, and the escaped label


def _ranges(line: Line, target: float | None) -> tuple[float, float, float, float]:
    """The first and last step, and the lowest and largest value, that a plot shows; neither range is empty."""
    steps, values = [step for step, _ in line.points], [value for _, value in line.points]
    values += [value for _, *ends in line.bounds for value in ends]
    values += [] if target is None else [target]
    first, last, bottom, top = min(steps), max(steps), min(values), max(values)
    if first == last:
        first, last = first - 0.5, last + 0.5
    space = (top - bottom) * 0.05 or abs(top) * 0.1 or 0.5
    return first, last, bottom - space, top + space


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values from `low` to `high`."""
    apart = (high - low) / count
    if not math.isfinite(apart) or apart <= 0:
        return []
    size = 10.0 ** math.floor(math.log10(apart))
    step = next((size * each for each in (1, 2, 5) if size * each >= apart), size * 10)
    first = math.ceil(low / step)
    return [step * place for place in range(first, first + 2 * count + 2) if step * place <= high]


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < size * 1000 and abs(value) >= 1e4:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
