"""Judges a stream of events by health rules: pure, one step at a time, in bounded memory.

Works on the log of any program, as metrics are known by all their spellings (`core/metric_aliases.py`). Rules that name
`run.` say something only of a run of ours, whose settings are known (`run_facts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from statistics import median
from types import CodeType
from typing import Any

from launcher.core.events import Alert, Event, Step
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import catalogue, ties_as_half
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.health.advice import LARGEST_LR
from launcher.health.expressions import PLAIN, evaluate, namespace, parse_condition
from launcher.health.series import FUNCTIONS, Series, UnknownValue
from launcher.spec.health import HealthRule, HealthRules

PARTS = "timing_s/"
OF_ACTOR = {"actor/entropy", "actor/grad_norm", "actor/lr", "actor/loss"}
"""Our names of what any trainer may log: TRL's entropy of SFT is one."""
OF_RL = ("critic/", "actor/", "rollout_corr/", "response_length/", "reward/", "rollout/", "objective/")
MEAN = "/mean"  # a metric of that name may have beside it the lowest value and the standard deviation of what it is of
SLOWER = 2.0  # times its median, of a part that makes a step slow
SERIOUS = {"info": 0, "warn": 1, "critical": 2}
_PLACE = re.compile(r"\{([^{}]{1,200})\}")
_GIVEN = {"value", "threshold", "since", "slowest()"}
"""Places of a rule's texts that are no expressions."""
_UNKNOWN = "\0"
"""Stands where a fix has a place whose value is unknown, until it is known what to say instead."""
_WORD = re.compile(r"\w+")
_OF_METRIC = re.compile(r"(?:last|mean|recent|lowest|largest|least|most|usual|first|best)\((\w+)(?:, \d+)*\)")
_NONFINITE = re.compile(r"nonfinite\((\w+)\)")


class JudgedRun:
    """What is known of a run besides its metrics: nothing of the log of another program, whose settings are unknown."""

    series: Mapping[str, Series] = {}
    """The judge's series, by alias."""
    names: Collection[str] | None = None
    """What may stand behind `run.`; None where any setting may."""

    def find(self, path: str) -> Any:
        """The fact or setting behind `run.`. Raises `UnknownValue` where there is none."""
        raise UnknownValue


@dataclass
class ActiveRule:
    """A rule and how long it has held."""

    name: str
    rule: HealthRule
    when: CodeType
    hold: CodeType | int
    shown: CodeType
    threshold: CodeType | None
    places: dict[str, CodeType]
    """Code of each `{EXPRESSION}` in the rule's texts."""
    finite: tuple[str, ...]
    """Metrics that the rule needs to be finite."""
    metrics: frozenset[str]
    """What `when` names: without a new value of these it stays as it was, unless it names the run."""
    of_run: bool
    holds: bool | None = None
    held: int = 0
    since: int = 0
    reported: bool = False


class Judge:
    """What the rules find in a run, each rule once. `program` names the engine whose spelling the fixes have.

    Raises `Problems` for rules that cannot be read.
    """

    def __init__(self, rules: HealthRules, program: str = "rlrun", facts: JudgedRun | None = None) -> None:
        self.program = program
        self.names: dict[str, str] = {}
        """Of each alias the metric that the log has, in the log's own spelling."""
        self.series: dict[str, Series] = {alias: Series() for alias in rules.metrics}
        self.facts = facts or JudgedRun()
        self.facts.series = self.series
        self._parts: dict[str, Series] = {}
        self._aliases = {alias: tuple(map(canonical, names)) for alias, names in rules.metrics.items()}
        self._bound: dict[str, str] = {}  # of each alias the canonical name
        self._seen = set[str]()  # our names of metrics
        self._names = namespace({**CALLS, **self.series}, self.facts.find)
        self._step = 0
        self.active = list(self._read(rules))

    def see(self, event: Event) -> list[Alert]:
        """The alerts that an event gives rise to."""
        if not isinstance(event, Step):
            return []
        self._step = event.step
        fresh = self._take(event)
        return [self.alert_of(active) for active in self.active if self._fires(active, fresh)]

    def finish(self) -> list[Alert]:
        """The alerts of rules that are judged at the end."""
        at_end = [active for active in self.active if active.rule.at_end and self._holds(active)]
        for active in at_end:
            active.since, active.reported = self._step, True
        return [self.alert_of(active) for active in at_end if not self._is_covered(active)]

    def standing(self) -> list[ActiveRule]:
        """The rules that hold now, and have held for long enough."""
        return [active for active in self.active if active.held and self._holds(active) and self._held_enough(active)]

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
        of_rl = any(name.startswith(OF_RL) and name not in OF_ACTOR for name in self._seen)
        return "sft" if "sft" in kinds and not of_rl else "rl"

    # ---- metrics

    def _take(self, event: Step) -> set[str]:
        """Add a step's values; the aliases that have a new one."""
        spelt = by_our_names(event.metrics)
        values = ties_as_half({ours: event.metrics[name] for ours, name in spelt.items()})
        found = {ours: (name, values[ours]) for ours, name in spelt.items()}
        self._seen |= found.keys()
        fresh = set[str]()
        for alias, names in self._aliases.items():
            bound = self._bound.get(alias)
            if bound is None or bound not in found:
                better = next(_matching(names, found), None)
                if better is None or (bound is not None and self.series[alias].size):
                    continue
                self._bound[alias] = bound = better
            self.names[alias], value = found[bound]
            self.series[alias].add(event.step, value)
            if bound.endswith(MEAN):
                parts = [found.get(bound.removesuffix(MEAN) + part, (bound, None))[1] for part in ("/min", "/std")]
                self.series[alias].add_parts(*parts)
            fresh.add(alias)
        for name, (_, value) in found.items():
            if name.startswith(PARTS) and name != f"{PARTS}step":
                self._parts.setdefault(name, Series()).add(event.step, value)
        return fresh

    # ---- rules

    def _read(self, rules: HealthRules) -> Iterator[ActiveRule]:
        fix = "use another name"
        problems = [Problem(f"health.metrics.{each}", "is the name of a function", fix) for each in rules.metrics
                    if each in CALLS]  # fmt: skip
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

    def _activate(self, name: str, rule: HealthRule) -> ActiveRule:
        parse = partial(parse_condition, metrics=self.series, functions=CALLS, run=self.facts.names)
        texts = [rule.text, rule.cause, *rule.fix.values()]
        places = {place for text in texts for place in _PLACE.findall(text)} - _GIVEN
        return ActiveRule(
            name, rule, parse(rule.when), parse(rule.hold) if isinstance(rule.hold, str) else rule.hold,
            parse(rule.value or f"last({rule.metric})"), parse(rule.threshold) if rule.threshold else None,
            {place: parse(place) for place in places}, tuple(_NONFINITE.findall(rule.when)),
            frozenset(_WORD.findall(rule.when)) & self.series.keys(), "run." in rule.when,
        )  # fmt: skip

    def _fires(self, active: ActiveRule, fresh: set[str]) -> bool:
        if active.reported or active.rule.at_end or not fresh:
            return False
        if active.holds is None or active.of_run or not fresh.isdisjoint(active.metrics):
            active.holds = self._holds(active)
        if not active.holds:
            active.held = 0
            return False
        if not active.held:
            active.since = self._step
        active.held += active.rule.metric in fresh or active.rule.metric not in self.names
        if not self._held_enough(active) or self._is_covered(active):
            return False
        active.reported = True
        return True

    def _is_covered(self, active: ActiveRule) -> bool:
        """Whether a rule was reported that says the same: one that is as serious, or holds now."""
        return any(
            active.name in other.rule.covers
            for other in self.active
            if other.reported and (other.held or SERIOUS[other.rule.level] >= SERIOUS[active.rule.level])
        )

    def _held_enough(self, active: ActiveRule) -> bool:
        hold = active.hold if isinstance(active.hold, int) else self._number(active.hold)
        return hold is not None and active.held >= hold

    def _holds(self, active: ActiveRule) -> bool:
        try:
            return bool(evaluate(active.when, self._names))
        except UnknownValue:
            return False

    def alert_of(self, active: ActiveRule) -> Alert:
        """What the rule says of the run as it stands."""
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

    def _evidence(self, active: ActiveRule) -> tuple[str, float | None]:
        """The alias of the metric that shows the finding, and its value: of one that is not finite, if there is one."""
        wrong = next((alias for alias in active.finite if self.series[alias].nonfinite_value is not None), None)
        if wrong is not None:
            return wrong, self.series[wrong].nonfinite_value
        return active.rule.metric, self._number(active.shown)

    def _number(self, code: CodeType | None) -> float | None:
        found = self._find(code)
        return None if found is None or isinstance(found, str) else float(found)

    def _find(self, code: CodeType | None) -> Any:
        try:
            return None if code is None else evaluate(code, self._names)
        except UnknownValue:
            return None

    def _fill(
        self, active: ActiveRule, text: str, *, value: float | None, threshold: float | None, unknown: str = "?"
    ) -> str:
        def put(match: re.Match[str]) -> str:
            place = match[1]
            if place == "slowest()":
                return self.slowest()
            given = {"value": value, "threshold": threshold, "since": active.since}
            found = given[place] if place in given else self._find(active.places[place])
            if found is None or isinstance(found, str):
                return found or unknown
            return compact(found).replace(",", "")  # it may be the value of a setting

        return _PLACE.sub(put, text)

    def slowest(self) -> str:
        """The part of the step that took most longer than usual, such as `timing_s/save_checkpoint took 22,076 s`."""
        longer = dict[str, float]()
        for name, part in self._parts.items():
            if part.steps[-1] == self._step:
                usual = median(part.before(1, 20)) if part.size > 1 else 0.0
                longer |= {name: part.last() - usual} if part.last() > SLOWER * usual else {}
        if not longer:
            return "no part of the step alone"
        name = max(longer, key=lambda each: longer[each])
        return f"{name} took {self._parts[name].last():,.0f} s"


def slower(metric: Series, factor: float, bound: float = 0.0) -> float:
    """A learning rate: the largest value divided by `factor`, at most `bound` (of 0: 0.001), and `bound` where no value
    is known."""
    most = metric.max if metric.size else 0.0
    if most <= 0:  # not logged, or 0 at the first step of a warm-up
        if not bound:
            raise UnknownValue
        return bound
    return min(most / factor, bound or LARGEST_LR)


CALLS: Mapping[str, Any] = {**PLAIN, **FUNCTIONS, "slower": slower}
"""What a condition may call."""


def _matching(names: tuple[str, ...], found: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        if "*" in name:
            yield from (each for each in found if fnmatchcase(each, name))
        elif name in found:
            yield name


def _measure(rule: HealthRule) -> str:
    """The expression of a rule's value where it is not one of the metric itself, such as a mean of late."""
    found = _OF_METRIC.fullmatch(rule.value)
    return "" if not rule.value or (found and found[1] == rule.metric) else " ".join(rule.value.split())
