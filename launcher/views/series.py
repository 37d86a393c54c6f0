"""The metrics of a log or run over its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from launcher.core.events import Step
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import HELD_OUT, better, label, shown_in
from launcher.core.problems import Problem, Problems, suggest
from launcher.views.trace import Trace

STEP_NUMBER = ("step", "global_step", "training/global_step")
TELLING = 18
"""Most metrics of the overview: what fits on a screen."""


def overview(steps: Iterable[Step], keys: Sequence[str]) -> tuple[dict[str, Trace], set[str], int]:
    """The values of each metric that `keys` choose, without keys of the most important ones (`is_telling`); the names
    of all metrics; and the last step."""
    traces, names, last = dict[str, Trace](), set[str](), 0
    chosen = set[str]()
    for step in steps:
        last = max(last, step.step)
        if new := step.metrics.keys() - names:
            names |= new
            chosen |= {name for name in new if (matches(name, keys) if keys else is_telling(name))}
        for name in chosen & step.metrics.keys():
            if name not in traces:
                traces[name] = Trace()
            traces[name].add(step.step, step.metrics[name])
    order = chosen_names(traces, keys) if keys else _by_importance(traces)[:TELLING]
    return {name: traces[name] for name in order}, names, last


def best_value(name: str, trace: Trace) -> tuple[float, int] | None:
    """The best finite value of a metric and its step; None where neither direction is better."""
    direction = better(canonical(name))
    if direction is None or not trace.count:
        return None
    low, high = trace.lowest, trace.largest
    return (high.high, high.high_step) if direction == "up" else (low.low, low.low_step)


def values_of_step(steps: Iterable[Step], number: int) -> dict[str, float]:
    """All metrics of a step; of several lines the latest value. Raises `Problems` where there are steps, but not this
    one; empty without any step."""
    metrics, first, last = dict[str, float](), math.inf, -1
    for step in steps:
        first, last = min(first, step.step), max(last, step.step)
        if step.step == number:
            metrics |= step.metrics
    if not metrics and last >= 0:
        got = f"no such step; the steps are {first} to {last}"
        raise Problems(Problem(f"step {number}", got, f"use --step {last}", "not-found"))
    return metrics


def names_of(steps: Iterable[Step], keys: Sequence[str]) -> list[str]:
    """The metrics that the keys choose, in the order of the keys. Raises `Problems` for a key without a metric."""
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    check_keys(keys, names)
    return chosen_names(names, keys)


def step_nodes(steps: Iterable[Step], names: Sequence[str] | None) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The number and the chosen metrics of each step that has any; `names` is None for all."""
    for step in steps:
        metrics = step.metrics if names is None else {n: step.metrics[n] for n in names if n in step.metrics}
        if metrics:
            yield step.step, metrics


def matches(name: str, keys: Sequence[str]) -> bool:
    """Whether a key is this metric's name, a pattern of it, another spelling of it, its label on the screen, or its
    ending, as `rewards/mean`; a key that is another spelling of a metric, as `grad_norm`, is not taken as an ending."""
    our_name = canonical(name)
    return any(
        fnmatchcase(name, key)
        or key in (name, label(our_name))
        or our_name == canonical(key)
        or (name.endswith(f"/{key}") and canonical(key) == key)
        for key in keys
    )


def is_telling(name: str) -> bool:
    """Whether a metric, by any spelling, is one of the most important ones or of held-out data."""
    our_name = canonical(name)
    is_watched = any(our_name in group for group in shown_in("watched")) or name == "loss"
    return is_watched or (our_name.startswith(HELD_OUT) and not our_name.startswith("val-aux/"))


def _by_importance(names: Iterable[str]) -> list[str]:
    rank = {name: place for place, group in enumerate(shown_in("watched")) for name in group}
    return sorted(names, key=lambda name: (rank.get(canonical(name), len(rank)), name))


def check_keys(keys: Sequence[str], names: Iterable[str]) -> None:
    """Raises `Problems` for keys without a metric, except those of the step's number."""
    known = sorted(names)
    missing = [key for key in keys if key not in STEP_NUMBER and not any(matches(name, [key]) for name in known)]
    if missing:
        raise Problems(Problem(key, "no metric of that name", suggest(key, known[:60]), "not-found") for key in missing)


def chosen_names(names: Iterable[str], keys: Sequence[str]) -> list[str]:
    """The names that the keys choose, in the order of the keys; without keys, all in alphabetical order. A key that is
    itself a name does not choose other spellings: a log may have both `policy_loss` and `pg_loss`."""
    if not keys:
        return sorted(names)
    names, place = set(names), {key: index for index, key in enumerate(keys)}
    other_keys = [key for key in keys if key not in names]
    chosen = {name: place[name] for name in names if name in place}
    for name in names - chosen.keys():
        if key := next((key for key in other_keys if matches(name, [key])), None):
            chosen[name] = place[key]
    return sorted(chosen, key=lambda name: (chosen[name], name))
