"""Judges a stream of events by health rules: pure, one step at a time, in bounded memory.

Works on the log of any program, as metrics are known by all their spellings (`core/metric_aliases.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from operator import gt as above
from operator import lt as below
from statistics import fmean, median
from types import CodeType
from typing import Any

from launcher.core.events import Alert, Event, Step
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import catalogue
from launcher.core.problems import Problem, Problems
from launcher.health.advice import LARGEST_LR
from launcher.health.expressions import PLAIN, UnknownValue, evaluate, namespace, parse_condition
from launcher.health.series import SIGNIFICANT, Series
from launcher.spec.health import HealthRule, HealthRules

PARTS = "timing_s/"
OF_ACTOR = {"actor/entropy", "actor/grad_norm", "actor/lr", "actor/loss"}
"""Our names of what any trainer may log: TRL's entropy of SFT is one."""
OF_RL = ("critic/", "actor/", "rollout_corr/", "response_length/", "reward/", "rollout/", "objective/")
MEAN = "/mean"  # a metric of that name may have beside it the lowest value and the standard deviation of what it is of
SLOWER = 2.0  # times its median, of a part that makes a step slow
_PLACE = re.compile(r"\{([^{}]{1,200})\}")
_UNKNOWN = "\0"
"""Stands where a fix has a place whose value is unknown, until it is known what to say instead."""
_WORD = re.compile(r"\w+")
_OF_METRIC = re.compile(r"(?:last|mean|recent|lowest|largest|least|most|usual|first|best)\((\w+)(?:, \d+)*\)")
_NONFINITE = re.compile(r"nonfinite\((\w+)\)")


@dataclass
class _ActiveRule:
    """A rule and how long it has held."""

    name: str
    rule: HealthRule
    when: CodeType
    shown: CodeType
    threshold: CodeType | None
    places: dict[str, CodeType]
    """Code of each `{EXPRESSION}` in the rule's texts."""
    finite: tuple[str, ...]
    """Metrics that the rule needs to be finite."""
    metrics: frozenset[str]
    """What `when` names: without a new value of these it stays as it was."""
    holds: bool | None = None
    held: int = 0
    since: int = 0
    reported: bool = False
    covered: bool = False
    """Whether another rule was reported that says the same."""


class Judge:
    """What the rules find in a run, each rule once. `program` names the engine whose spelling the fixes have.

    Raises `Problems` for rules that cannot be read.
    """

    def __init__(self, rules: HealthRules, program: str = "rlrun") -> None:
        self.program = program
        self.names: dict[str, str] = {}
        """Of each alias the metric that the log has, in the log's own spelling."""
        self.series: dict[str, Series] = {alias: Series() for alias in rules.metrics}
        self._parts: dict[str, Series] = {}
        self._aliases = {alias: tuple(map(canonical, names)) for alias, names in rules.metrics.items()}
        self._bound: dict[str, str] = {}  # of each alias the canonical name
        self._seen = set[str]()  # our names of metrics
        self._functions = self._make_functions()
        self._names = namespace(self._functions)
        self._step = 0
        self._active = list(self._read(rules))

    def see(self, event: Event) -> list[Alert]:
        """The alerts that an event gives rise to."""
        if not isinstance(event, Step):
            return []
        self._step = event.step
        fresh = self._take(event)
        return [self._alert(active) for active in self._active if self._fires(active, fresh)]

    def standing(self) -> list[Alert]:
        """The findings that were reported and still hold."""
        return [
            self._alert(active) for active in self._active if active.reported and active.held and self._holds(active)
        ]

    def find_series(self, metric: str) -> Series | None:
        """The values of the metric that an alert names."""
        return next((self.series[alias] for alias, name in self.names.items() if name == metric), None)

    def fix_of(self, fixes: Mapping[str, str]) -> str:
        """The text of a rule's `fix` for the program that wrote the log, and for what it trains."""
        keys = (f"{self.program}-{self.trained}", self.program, "any")
        return next((fixes[key] for key in keys if key in fixes), "")

    @property
    def trained(self) -> str:
        """What is trained, as the metrics so far tell: `pairs` (DPO), `sft`, or `rl`, also where they do not."""
        kinds = {catalogue()[name].trains for name in self._seen & catalogue().keys()}
        if "pairs" in kinds:
            return "pairs"
        return "sft" if "sft" in kinds and not any(map(_is_of_rl, self._seen)) else "rl"

    # ---- metrics

    def _take(self, event: Step) -> set[str]:
        """Add a step's values; the aliases that have a new one."""
        found = {ours: (name, event.metrics[name]) for ours, name in by_our_names(event.metrics).items()}
        self._seen |= found.keys()
        fresh = set[str]()
        for alias, names in self._aliases.items():
            bound = self._bound.get(alias)
            if bound is None or bound not in found:
                better = next(self._matching(names, found), None)
                if better is None or (bound is not None and self.series[alias].count):
                    continue
                self._bound[alias] = bound = better
            self.names[alias], value = found[bound]
            self.series[alias].add(event.step, value)
            if bound.endswith(MEAN):
                parts = [found.get(bound.removesuffix(MEAN) + part, (bound, None))[1] for part in ("/min", "/std")]
                self.series[alias].see_parts(*parts)
            fresh.add(alias)
        for name, (_, value) in found.items():
            if name.startswith(PARTS) and name != f"{PARTS}step":
                self._parts.setdefault(name, Series()).add(event.step, value)
        return fresh

    @staticmethod
    def _matching(names: tuple[str, ...], found: Mapping[str, Any]) -> Iterator[str]:
        for name in names:
            if "*" in name:
                yield from (each for each in found if fnmatchcase(each, name))
            elif name in found:
                yield name

    # ---- rules

    def _read(self, rules: HealthRules) -> Iterator[_ActiveRule]:
        problems = list[Problem]()
        for name, rule in rules.rules.items():
            if rule.metric not in rules.metrics:
                known = ", ".join(rules.metrics) or "a name under health.metrics"
                problems.append(Problem(f"health.rules.{name}.metric", f"is {rule.metric!r}", f"use one of {known}"))
                continue
            try:
                yield self._activate(name, rule)
            except ValueError as error:
                got = f"cannot be read: {error}"
                problems.append(Problem(f"health.rules.{name}", got, "see docs/health.md"))
        if problems:
            raise Problems(problems)

    def _activate(self, name: str, rule: HealthRule) -> _ActiveRule:
        parse = partial(parse_condition, metrics=self.series, functions=self._functions)
        texts = [rule.text, rule.cause, *rule.fix.values()]
        places = {place for text in texts for place in _PLACE.findall(text)} - {
            "value",
            "threshold",
            "since",
            "slowest()",
        }
        return _ActiveRule(
            name, rule, parse(rule.when), parse(rule.value or f"last({rule.metric})"),
            parse(rule.threshold) if rule.threshold else None, {place: parse(place) for place in places},
            tuple(_NONFINITE.findall(rule.when)), frozenset(_WORD.findall(rule.when)) & self.series.keys(),
        )  # fmt: skip

    def _fires(self, active: _ActiveRule, fresh: set[str]) -> bool:
        if active.reported or active.covered or not fresh:
            return False
        if active.holds is None or not fresh.isdisjoint(active.metrics):
            active.holds = self._holds(active)
        if not active.holds:
            active.held = 0
            return False
        if not active.held:
            active.since = self._step
        active.held += active.rule.metric in fresh or active.rule.metric not in self.names
        if active.held < active.rule.hold:
            return False
        active.reported = True
        for other in self._active:
            other.covered = other.covered or other.name in active.rule.covers
        return True

    def _holds(self, active: _ActiveRule) -> bool:
        try:
            return bool(evaluate(active.when, self._names))
        except UnknownValue:
            return False

    def _alert(self, active: _ActiveRule) -> Alert:
        rule = active.rule
        metric, value = self._evidence(active)
        threshold = self._number(active.threshold)
        fill = partial(self._fill, active, value=value, threshold=threshold)
        text, fix = fill(rule.text), fill(self.fix_of(rule.fix), unknown=_UNKNOWN)
        if _UNKNOWN in fix:  # a value that the log has not, such as the learning rate
            fix = fill(rule.fix["any"]) if "any" in rule.fix else fix.replace(f"={_UNKNOWN}", "").replace(_UNKNOWN, "?")
        return Alert(
            step=self._step, text="; ".join(part for part in (text, fix and f"use {fix}") if part), level=rule.level,
            rule=active.name, metric=self.names.get(metric, ""), since=active.since, value=value,
            threshold=threshold, cause=fill(rule.cause), fix=fix, source=rule.source,
            measure="" if metric != rule.metric else _measure(rule),
        )  # fmt: skip

    def _evidence(self, active: _ActiveRule) -> tuple[str, float | None]:
        """The alias of the metric that shows the finding, and its value: of one that is not finite, if there is one."""
        wrong = next((alias for alias in active.finite if self.series[alias].nonfinite is not None), None)
        if wrong is not None:
            return wrong, self.series[wrong].nonfinite
        return active.rule.metric, self._number(active.shown)

    def _number(self, code: CodeType | None) -> float | None:
        if code is None:
            return None
        try:
            return float(evaluate(code, self._names))
        except UnknownValue:
            return None

    def _fill(
        self, active: _ActiveRule, text: str, *, value: float | None, threshold: float | None, unknown: str = "?"
    ) -> str:
        def put(match: re.Match[str]) -> str:
            place = match[1]
            if place == "slowest()":
                return self.slowest()
            found = {"value": value, "threshold": threshold, "since": active.since}.get(place)
            found = self._number(active.places[place]) if place in active.places else found
            return unknown if found is None else f"{found:.3g}" if abs(found) < 1000 else f"{found:.0f}"

        return _PLACE.sub(put, text)

    # ---- functions of conditions

    def slowest(self) -> str:
        """The part of the step that took most longer than usual, such as `timing_s/save_checkpoint took 22,076 s`."""
        longer = dict[str, float]()
        for name, part in self._parts.items():
            if part.steps[-1] == self._step:
                usual = median(part.before(1, 20)) if part.count > 1 else 0.0
                longer |= {name: part.last - usual} if part.last > SLOWER * usual else {}
        if not longer:
            return "no part of the step alone"
        name = max(longer, key=lambda each: longer[each])
        return f"{name} took {self._parts[name].last:,.0f} s"

    def _get(self, metric: str, least: int = 1) -> Series:
        series = self.series[metric]
        if series.count < least:
            raise UnknownValue
        return series

    def _make_functions(self) -> dict[str, Callable[..., Any]]:
        get = self._get

        def last(metric: str) -> float:
            return get(metric).last

        def slower(metric: str, factor: float, bound: float = 0.0) -> float:
            """A learning rate so many times smaller than the largest, at most `bound`, and that where none is known."""
            most = self.series[metric].most if self.series[metric].count else 0.0
            if most <= 0:  # not logged, or 0 at the first step of a warm-up
                if not bound:
                    raise UnknownValue
                return bound
            return min(most / factor, bound or LARGEST_LR)

        def mean(metric: str, count: int = 3) -> float:
            return get(metric, count).mean(count)

        def first(metric: str, count: int = 3) -> float:
            return get(metric, count).first(count)

        def usual(metric: str, count: int = 20, skip: int = 1) -> float:
            return median(get(metric, skip + 3).before(skip, count))

        def halfway(metric: str, count: int = 3) -> float:
            return get(metric, max(10, 2 * count)).halfway(count)

        def lowest(metric: str, count: int = 3) -> float:
            return min(get(metric, count).lately(count))

        def largest(metric: str, count: int = 3) -> float:
            return max(get(metric, count).lately(count))

        def count_above(metric: str, bound: float, count: int = 10) -> int:
            return sum(value > bound for value in get(metric).lately(count))

        return {
            **PLAIN, "last": last, "mean": mean, "first": first, "usual": usual, "halfway": halfway,
            "lowest": lowest, "largest": largest, "count_above": count_above, "slower": slower,
            **self._extremes(), **self._trends(), **self._comparisons(),
        }  # fmt: skip

    def _extremes(self) -> dict[str, Callable[..., Any]]:
        get = self._get

        def known(metric: str) -> bool:
            return self.series[metric].count > 0

        def count(metric: str) -> int:
            return self.series[metric].count

        def nonfinite(metric: str) -> int:
            """How many of the last values in a row are NaN or infinite."""
            return self.series[metric].nonfinite_in_a_row

        def nan(metric: str) -> bool:
            value = self.series[metric].nonfinite
            return value is not None and math.isnan(value)

        def least(metric: str) -> float:
            return get(metric).least

        def most(metric: str) -> float:
            return get(metric).most

        def best(metric: str) -> float:
            return get(metric).best

        def sure(metric: str) -> float:
            return get(metric, 3).sure

        def peak(metric: str) -> float:
            return get(metric, 2).peak

        def trough(metric: str) -> float:
            return get(metric, 2).trough

        def span(metric: str) -> float:
            return get(metric).span

        def floor(metric: str) -> float:
            return get(metric, 3).floor

        def record_low(metric: str, count: int = 2) -> bool:
            return self.series[metric].count >= count + 3 and self.series[metric].is_record_low(count)

        each = (known, count, nonfinite, nan, least, most, peak, trough, best, sure, span, floor, record_low)
        return {function.__name__: function for function in each}

    def _trends(self) -> dict[str, Callable[..., Any]]:
        get = self._get

        def noise(metric: str) -> float:
            return get(metric, 3).noise

        def scatter(metric: str) -> float:
            return get(metric, 4).scatter

        def expected_max(metric: str) -> float:
            return get(metric).expected_max

        def item_error(metric: str) -> float:
            return get(metric).item_error

        def recent(metric: str) -> float:
            """Mean of the last values, of as many as show a change beyond the noise."""
            series = get(metric, 3)
            return series.mean(series.window)

        def error(metric: str, count: int = 0) -> float:
            series = get(metric, 3)
            return series.error(count or series.window)

        def slope(metric: str, count: int = 10) -> float:
            return get(metric, count).slope(count)

        def rose(metric: str) -> bool:
            return self.series[metric].rise() > SIGNIFICANT

        def fell(metric: str) -> bool:
            return self.series[metric].rise() < -SIGNIFICANT

        each = (noise, scatter, expected_max, item_error, recent, error, slope, rose, fell)
        return {function.__name__: function for function in each}

    def _comparisons(self) -> dict[str, Callable[..., Any]]:
        get = self._get

        def drop(metric: str, count: int = 2) -> float:
            """How far the mean of the last values is below the best, in standard errors of the noise before them."""
            return get(metric, count + 10).drop(count)

        def share(metric: str, count: int = 0) -> float:
            """Where the mean of the last values is between the floor and the best mean; without `count` between the
            floor and what is sure of the best mean."""
            series = get(metric, max(count, 3))
            low = series.floor
            best = series.best if count else series.sure
            return (series.mean(count or series.window) - low) / (best - low) if best > low else 1.0

        def gap_growth(metric: str, other: str) -> float:
            """By how much the first exceeds the second, more than at the steps of the second's first two values."""
            ours, held_out = get(metric, 5), get(other, 2)
            before = fmean(ours.near(step, 5) - value for step, value in held_out.outline[:2])
            return ours.mean(5) - held_out.last - before

        def distance(metric: str, other: str, third: str) -> float:
            """The larger of what the first two differ by, and the absolute third; of what is known."""
            found = [abs(self.series[metric].last - self.series[other].last)] if known_both(metric, other) else []
            found += [abs(self.series[third].last)] if self.series[third].count else []
            if not found:
                raise UnknownValue
            return max(found)

        def known_both(metric: str, other: str) -> bool:
            return bool(self.series[metric].count and self.series[other].count)

        def falls_in_a_row(metric: str) -> int:
            """How many of the last values are each below the one before."""
            return get(metric, 2).in_a_row(below)

        def rises_in_a_row(metric: str) -> int:
            return get(metric, 2).in_a_row(above)

        each = (drop, share, gap_growth, distance, falls_in_a_row, rises_in_a_row)
        return {function.__name__: function for function in each}


def _is_of_rl(name: str) -> bool:
    return name.startswith(OF_RL) and name not in OF_ACTOR


def _measure(rule: HealthRule) -> str:
    """The expression of a rule's value where it is not one of the metric itself, such as a mean of late."""
    found = _OF_METRIC.fullmatch(rule.value)
    return "" if not rule.value or (found and found[1] == rule.metric) else " ".join(rule.value.split())
