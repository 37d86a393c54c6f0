"""Series of a metric, made up: straight lines, growth, waves, and values that come now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.core.events import Alert, Step
from launcher.health.judge import Judge
from launcher.spec.health import HealthRules

Values = Mapping[str, Sequence[float | None]]


def line(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * number / max(count - 1, 1) for number in range(count)]


def growth(first: float, factor: float, count: int) -> list[float]:
    return [first * factor**number for number in range(count)]


def around(middle: float, apart: float, count: int) -> list[float]:
    """By turns below and above."""
    return [middle + apart * (1 if number % 2 else -1) for number in range(count)]


def every(count: int, values: Iterable[float]) -> list[float | None]:
    """The values with `count - 1` steps without one before each."""
    return [each for value in values for each in (*([None] * (count - 1)), value)]


def series_of(parts: Iterable[Any]) -> list[float | None]:
    """A series from the parts of a file: a value, [count, value], [count, first, last], or a mapping with the arguments
    of `growth`, of `every`, or of two values that come by turns."""
    found = list[float | None]()
    for part in parts:
        match part:
            case [count, first, *last]:
                found += line(first, *(last or [first]), count)
            case {"first": first, "factor": factor, "count": count}:
                found += growth(first, factor, count)
            case {"turns": turns, "count": count}:
                found += [turns[number % 2] for number in range(count)]
            case {"every": count, "of": values}:
                found += every(count, series_of(values))
            case _:
                found.append(part)
    return found


def judged(rules: HealthRules, values: Values, program: str = "rlrun") -> list[Alert]:
    """The findings in series of equal length, whose first value is that of step 1; None is no value."""
    judge, alerts = Judge(rules, program), list[Alert]()
    for step, row in enumerate(zip(*values.values(), strict=True), start=1):
        metrics = {name: value for name, value in zip(values, row, strict=True) if value is not None}
        alerts += judge.see(Step(step=step, metrics=metrics))
    return alerts + judge.finish()
