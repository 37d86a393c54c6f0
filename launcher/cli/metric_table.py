"""What the steps of a log or run come to, metric by metric: first, last and best value, and the curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice

from launcher.cli.plot import CurveMeans
from launcher.core.events import Step
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import HELD_OUT, better, label, shown_in
from launcher.core.problems import Problem, Problems, suggest

CHUNK = 512
MOST_NAMES = 20_000
"""Metrics that are kept of one log; a log with more is damaged."""
STEP_NUMBER = ("step", "global_step", "training/global_step")
TELLING = 18
"""Most metrics of the overview."""


@dataclass
class Column:
    """One metric over the steps."""

    name: str
    first: float = math.nan
    last: float = math.nan
    low: tuple[float, int] = (math.inf, 0)
    """The least finite value, and its step; `high` the greatest."""
    high: tuple[float, int] = (-math.inf, 0)
    count: int = 0
    not_finite: int = 0
    trace: CurveMeans = field(default_factory=CurveMeans)
    steps: CurveMeans = field(default_factory=CurveMeans)

    def add(self, steps: Sequence[int], values: Sequence[float]) -> None:
        if not self.count:
            self.first = values[0]
        self.count, self.last = self.count + len(values), values[-1]
        if not math.isfinite(sum(values)):
            self.not_finite += sum(not math.isfinite(value) for value in values)
        finite = values if math.isfinite(sum(values)) else [value for value in values if math.isfinite(value)]
        if finite and (least := min(finite)) < self.low[0]:
            self.low = least, steps[values.index(least)]
        if finite and (greatest := max(finite)) > self.high[0]:
            self.high = greatest, steps[values.index(greatest)]
        self.trace.extend(values)
        self.steps.extend(steps)

    @property
    def best(self) -> tuple[float, int] | None:
        """The best finite value and its step; None where neither direction is better."""
        way = better(canonical(self.name))
        if way is None or not math.isfinite(self.low[0]):
            return None
        return self.high if way == "up" else self.low

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(step, value), means where there are many."""
        return list(zip(self.steps.points(), self.trace.points(), strict=True))


def summary(steps: Iterable[Step], keys: Sequence[str]) -> tuple[list[Column], set[str]]:
    """A column of each metric that `keys` choose, or of the telling ones without any; and all names that there are."""
    rest, columns, names = iter(steps), dict[str, Column](), set[str]()
    chosen = set[str]()
    while chunk := list(islice(rest, CHUNK)):
        new = set[str]().union(*(step.metrics for step in chunk)) - names
        if new and len(names) < MOST_NAMES:
            names |= new
            chosen |= {name for name in new if (matches(name, keys) if keys else is_telling(name))}
        for name in chosen:
            here = [(step.step, step.metrics[name]) for step in chunk if name in step.metrics]
            if here:
                numbers, values = zip(*here, strict=True)
                columns.setdefault(name, Column(name)).add(numbers, values)
    order = chosen_names(columns, keys) if keys else _ordered(columns, keys)
    return [columns[name] for name in (order if keys else order[:TELLING])], names


def matches(name: str, keys: Sequence[str]) -> bool:
    """Whether a key is this metric's name, a pattern of it, another spelling of it, its label on the screen, or its
    end, as `rewards/mean`."""
    ours = canonical(name)
    return any(
        fnmatchcase(name, key) or name == key or ours == canonical(key) or label(ours) == key or _ends(name, key)
        for key in keys
    )


def _ends(name: str, key: str) -> bool:
    """Of a key that is another spelling of something, as `grad_norm`, that metric is meant and no other."""
    return name.endswith(f"/{key}") and canonical(key) == key


def is_telling(name: str) -> bool:
    """Whether a metric is of those that matter most, by any spelling, or of held-out data."""
    ours = canonical(name)
    known = any(ours in group for group in shown_in("watched")) or name == "loss"
    return known or (ours.startswith(HELD_OUT) and not ours.startswith("val-aux/"))


def _ordered(names: Iterable[str], keys: Sequence[str]) -> list[str]:
    """In the order of the keys; without any, what matters most first."""
    if keys:
        place = {key: at for at, key in enumerate(keys)}
        return sorted(
            names, key=lambda name: (place.get(name, next(place[key] for key in keys if matches(name, [key]))), name)
        )
    rank = {name: place for place, group in enumerate(shown_in("watched")) for name in group}
    return sorted(names, key=lambda name: (rank.get(canonical(name), len(rank)), name))


def check_keys(keys: Sequence[str], names: Iterable[str]) -> None:
    """Raises `Problems` for keys that no metric has; every step has its number."""
    known = sorted(names)
    missing = [key for key in keys if key not in STEP_NUMBER and not any(matches(name, [key]) for name in known)]
    if missing:
        raise Problems(Problem(key, "no metric of that name", suggest(key, known[:60]), "not-found") for key in missing)


def chosen_names(names: Iterable[str], keys: Sequence[str]) -> list[str]:
    """The names that the keys choose, in the order of the keys; without any, all in alphabetical order. A key that is
    itself a name is no other spelling of a second one: of `policy_loss` and `pg_loss` a log may have both."""
    if not keys:
        return sorted(names)
    names = set(names)
    others = [key for key in keys if key not in names]
    return _ordered([name for name in names if name in keys or matches(name, others)], keys)
