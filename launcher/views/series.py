"""What the steps of a log or run come to, metric by metric: first, last and best value, and the curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from launcher.core.events import Step
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import HELD_OUT, better, label, shown_in
from launcher.core.problems import Problem, Problems, suggest
from launcher.views.trace import Trace

STEP_NUMBER = ("step", "global_step", "training/global_step")
TELLING = 18
"""Most metrics of the overview: what fits on a screen."""


@dataclass
class MetricSeries:
    """One metric over the steps."""

    name: str
    trace: Trace = field(default_factory=Trace)

    @property
    def best(self) -> tuple[float, int] | None:
        """The best finite value and its step; None where neither direction is better."""
        way = better(canonical(self.name))
        if way is None or not self.trace.count:
            return None
        low, high = self.trace.lowest, self.trace.largest
        return (high.high, high.high_step) if way == "up" else (low.low, low.low_step)


@dataclass
class Overview:
    """The series of a log or run that were chosen, and what else it has."""

    series: list[MetricSeries]
    names: set[str]
    """All metrics."""
    last_step: int = 0


def overview(steps: Iterable[Step], keys: Sequence[str]) -> Overview:
    """The series of each metric that `keys` choose, or of the telling ones without any."""
    found, names, last = dict[str, MetricSeries](), set[str](), 0
    chosen = set[str]()
    for step in steps:
        last = max(last, step.step)
        if new := step.metrics.keys() - names:
            names |= new
            chosen |= {name for name in new if (matches(name, keys) if keys else is_telling(name))}
        for name in chosen & step.metrics.keys():
            if name not in found:
                found[name] = MetricSeries(name)
            found[name].trace.add(step.step, step.metrics[name])
    order = chosen_names(found, keys) if keys else _by_importance(found)[:TELLING]
    return Overview([found[name] for name in order], names, last)


def curves(steps: Iterable[Step], names: set[str]) -> dict[str, list[tuple[float, float]]]:
    """(step, value) of each of these metrics; means where there are many."""
    found = {name: Trace() for name in names}
    for step in steps:
        for name in names & step.metrics.keys():
            found[name].add(step.step, step.metrics[name])
    return {name: trace.curve for name, trace in found.items()}


def values_of_step(steps: Iterable[Step], number: int) -> dict[str, float]:
    """All metrics of a step; those of its later lines count. Raises `Problems` where there are steps, but not this
    one; nothing without any step."""
    found, least, greatest = dict[str, float](), math.inf, -1
    for each in steps:
        least, greatest = min(least, each.step), max(greatest, each.step)
        if each.step == number:
            found |= each.metrics
    if not found and greatest >= 0:
        got = f"no such step; the steps are {least} to {greatest}"
        raise Problems(Problem(f"step {number}", got, f"use --step {greatest}", "not-found"))
    return found


def names_of(steps: Iterable[Step], keys: Sequence[str]) -> list[str]:
    """The metrics of the steps that the keys choose, in their order. Raises `Problems` for a key of none."""
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    check_keys(keys, names)
    return chosen_names(names, keys)


def step_nodes(steps: Iterable[Step], names: Sequence[str] | None) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The number and the chosen metrics of each step that has any; `names` is None for all."""
    for step in steps:
        found = step.metrics if names is None else {n: step.metrics[n] for n in names if n in step.metrics}
        if found:
            yield step.step, found


def matches(name: str, keys: Sequence[str]) -> bool:
    """Whether a key is this metric's name, a pattern of it, another spelling of it, its label on the screen, or its
    end, as `rewards/mean`. Of a key that is another spelling of something, as `grad_norm`, no end is meant."""
    ours = canonical(name)
    return any(
        fnmatchcase(name, key)
        or key in (name, label(ours))
        or ours == canonical(key)
        or (name.endswith(f"/{key}") and canonical(key) == key)
        for key in keys
    )


def is_telling(name: str) -> bool:
    """Whether a metric is of those that matter most, by any spelling, or of held-out data."""
    ours = canonical(name)
    known = any(ours in group for group in shown_in("watched")) or name == "loss"
    return known or (ours.startswith(HELD_OUT) and not ours.startswith("val-aux/"))


def _by_importance(names: Iterable[str]) -> list[str]:
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
    names, place = set(names), {key: at for at, key in enumerate(keys)}
    spelt = [key for key in keys if key not in names]
    found = {name: place[name] for name in names if name in place}
    for name in names - found.keys():
        if key := next((key for key in spelt if matches(name, [key])), None):
            found[name] = place[key]
    return sorted(found, key=lambda name: (found[name], name))
