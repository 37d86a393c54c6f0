"""Judges a stream of events by health rules: pure, one step at a time, in bounded memory.

Works on the log of any program, as metrics are known by all their spellings (`core/metric_aliases.py`). Rules that name
`run.` hold only in runs of rlrun, whose settings are known (`run_facts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from statistics import median
from types import CodeType
from typing import TYPE_CHECKING, Any

from launcher.core.events import Alert, Event, Step
from launcher.core.metric_aliases import by_our_names, canonical
from launcher.core.metrics import catalogue, ties_as_half
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.health.advice import LARGEST_LR
from launcher.health.expressions import PLAIN, evaluate, namespace, parse_condition
from launcher.health.series import FUNCTIONS, Series, UnknownValue
from launcher.spec.health import HealthRule, HealthRules

if TYPE_CHECKING:
    from launcher.health.run_facts import OwnRun

PARTS = "timing_s/"
OF_ACTOR = {"actor/entropy", "actor/grad_norm", "actor/lr", "actor/loss"}
"""Names that start as in `OF_RL`, but that any trainer may log: TRL logs the entropy in SFT, too."""
OF_RL = ("critic/", "actor/", "rollout_corr/", "response_length/", "reward/", "rollout/", "objective/")
MEAN = "/mean"  # beside it may be `/min` and `/std`, the lowest of the values and their standard deviation
SLOWER = 2.0  # times its usual duration: such a part makes a step slow
SERIOUS = {"info": 0, "warn": 1, "critical": 2}
_PLACE = re.compile(r"\{([^{}]{1,200})\}")
_FIXED_PLACES = {"value", "threshold", "since", "slowest()"}
"""What may stand in `{}` in a rule's texts that is not an expression."""
_UNKNOWN = "\0"
"""Placeholder in a fix for an unknown value; `alert_of` then replaces it, or takes the fix for `any` program."""
_PLAIN_VALUE = re.compile(r"(?:last|mean|recent|lowest|largest|least|most|usual|first|best)\((\w+)(?:, \d+)*\)")
_NONFINITE = re.compile(r"nonfinite\((\w+)\)")


@dataclass
class ActiveRule:
    """A rule and how long it has held."""

    name: str
    rule: HealthRule
    held: int = 0
    since: int = 0
    reported: bool = False


class Judge:
    """What the rules find in a run, each rule once. `program` is the program whose settings the fixes name, `run` a run
    of rlrun, whose facts and settings rules may ask for.

    Raises `Problems` for rules that cannot be read.
    """

    def __init__(self, rules: HealthRules, program: str = "rlrun", run: OwnRun | None = None) -> None:
        self.program = program
        self.names: dict[str, str] = {}
        """The metric in the log that each alias stands for, in the log's own spelling."""
        self.series: dict[str, Series] = {alias: Series() for alias in rules.metrics}
        if run:
            run.series = self.series
        self._run_names = run.names if run else None  # which may stand behind `run.`; None for any
        self._timings: dict[str, Series] = {}
        self._aliases = {alias: tuple(map(canonical, names)) for alias, names in rules.metrics.items()}
        self._bound_names: dict[str, str] = {}  # canonical name of the metric behind each alias
        self._metric_names = set[str]()  # canonical names of all metrics so far
        self._namespace = namespace({**CALLS, **self.series}, run.find if run else _not_known)
        self._codes: dict[str, CodeType] = {}  # of each expression of the rules, by its text
        self._step = 0
        self.active = list(self._read(rules))

    def see(self, event: Event) -> list[Alert]:
        """The alerts that an event gives rise to."""
        if not isinstance(event, Step):
            return []
        self._step = event.step
        fresh = self._add_values(event)
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
        kinds = {catalogue()[name].trains for name in self._metric_names & catalogue().keys()}
        if "pairs" in kinds:
            return "pairs"
        of_rl = any(name.startswith(OF_RL) and name not in OF_ACTOR for name in self._metric_names)
        return "sft" if "sft" in kinds and not of_rl else "rl"

    # ---- metrics

    def _add_values(self, event: Step) -> set[str]:
        """Add a step's values to the series; returns the aliases that have a new value."""
        log_names = by_our_names(event.metrics)
        values = ties_as_half({our_name: event.metrics[name] for our_name, name in log_names.items()})
        measured = {our_name: (name, values[our_name]) for our_name, name in log_names.items()}
        self._metric_names |= measured.keys()
        fresh = set[str]()
        for alias, names in self._aliases.items():
            bound = self._bound_names.get(alias)
            if bound is None or bound not in measured:
                matched = next(_matching_names(names, measured), None)
                if matched is None or (bound is not None and self.series[alias].size):
                    continue
                self._bound_names[alias] = bound = matched
            self.names[alias], value = measured[bound]
            self.series[alias].add(event.step, value)
            if bound.endswith(MEAN):
                parts = [measured.get(bound.removesuffix(MEAN) + part, (bound, None))[1] for part in ("/min", "/std")]
                self.series[alias].add_parts(*parts)
            fresh.add(alias)
        for name, (_, value) in measured.items():
            if name.startswith(PARTS) and name != f"{PARTS}step":
                self._timings.setdefault(name, Series()).add(event.step, value)
        return fresh

    # ---- rules

    def _read(self, rules: HealthRules) -> Iterator[ActiveRule]:
        fix = "use another name"
        problems = [Problem(f"health.metrics.{alias}", "is the name of a function", fix) for alias in rules.metrics
                    if alias in CALLS]  # fmt: skip
        parse = partial(parse_condition, metrics=self.series, functions=CALLS, run=self._run_names)
        for name, rule in rules.rules.items():
            if rule.metric not in rules.metrics:
                aliases = ", ".join(rules.metrics) or "a name under health.metrics"
                problems.append(Problem(f"health.rules.{name}.metric", f"is {rule.metric!r}", f"use one of {aliases}"))
                continue
            try:
                self._codes |= {text: parse(text) for text in _expressions(rule) if text not in self._codes}
                yield ActiveRule(name, rule)
            except ValueError as error:
                got = f"cannot be read: {error}"
                problems.append(Problem(f"health.rules.{name}", got, "see docs/health.md"))
        if problems:
            raise Problems(problems)

    def _fires(self, active: ActiveRule, fresh: set[str]) -> bool:
        if active.reported or active.rule.at_end or not fresh:
            return False
        if not self._holds(active):
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
        """Whether a reported rule covers this one, and is at least as serious or holds now."""
        return any(
            active.name in other.rule.covers
            for other in self.active
            if other.reported and (other.held or SERIOUS[other.rule.level] >= SERIOUS[active.rule.level])
        )

    def _held_enough(self, active: ActiveRule) -> bool:
        hold = self._evaluate_number(str(active.rule.hold))
        return hold is not None and active.held >= hold

    def _holds(self, active: ActiveRule) -> bool:
        return bool(self._evaluate(active.rule.when))

    def alert_of(self, active: ActiveRule) -> Alert:
        """The rule's alert for the run as it is now, with its texts filled in."""
        rule = active.rule
        metric, value = self._evidence(rule)
        threshold = self._evaluate_number(rule.threshold) if rule.threshold else None
        fill = partial(self._fill, active, value=value, threshold=threshold)
        text, fix = fill(rule.text), fill(self.fix_of(rule.fix), unknown=_UNKNOWN)
        if _UNKNOWN in fix:  # a value that is not in the log, such as the learning rate
            fix = fill(rule.fix["any"]) if "any" in rule.fix else fix.replace(f"={_UNKNOWN}", "").replace(_UNKNOWN, "?")
        return Alert(
            step=self._step, text="; ".join(part for part in (text, fix and f"use {fix}") if part), level=rule.level,
            rule=active.name, metric=self.names.get(metric, ""), since=active.since, value=value,
            threshold=threshold, cause=fill(rule.cause), fix=fix, source=rule.source,
            measure="" if metric != rule.metric else _value_expression(rule),
        )  # fmt: skip

    def _evidence(self, rule: HealthRule) -> tuple[str, float | None]:
        """(alias, value) of the metric that shows the finding; a metric that is not finite comes first."""
        for alias in _NONFINITE.findall(rule.when):
            if (value := self.series[alias].nonfinite_value) is not None:
                return alias, value
        return rule.metric, self._evaluate_number(_shown(rule))

    def _evaluate_number(self, text: str) -> float | None:
        value = self._evaluate(text)
        return None if value is None or isinstance(value, str) else float(value)

    def _evaluate(self, text: str) -> Any:
        """The value of an expression of the rules; None where it is unknown."""
        try:
            return evaluate(self._codes[text], self._namespace)
        except UnknownValue:
            return None

    def _fill(
        self, active: ActiveRule, text: str, *, value: float | None, threshold: float | None, unknown: str = "?"
    ) -> str:
        def replace_place(match: re.Match[str]) -> str:
            place = match[1]
            if place == "slowest()":
                return self.slowest()
            known_values = {"value": value, "threshold": threshold, "since": active.since}
            result = known_values[place] if place in known_values else self._evaluate(place)
            if result is None or isinstance(result, str):
                return result or unknown
            return compact(result).replace(",", "")  # it may be the value of a setting

        return _PLACE.sub(replace_place, text)

    def slowest(self) -> str:
        """The part of the step that took most longer than usual, such as `timing_s/save_checkpoint took 22,076 s`."""
        longer = dict[str, float]()
        for name, seconds in self._timings.items():
            if seconds.steps[-1] == self._step:
                usual = median(seconds.before(1, 20)) if seconds.size > 1 else 0.0
                longer |= {name: seconds.last() - usual} if seconds.last() > SLOWER * usual else {}
        if not longer:
            return "no part of the step alone"
        name = max(longer, key=lambda each: longer[each])
        return f"{name} took {self._timings[name].last():,.0f} s"


def _not_known(path: str) -> Any:
    """The value behind `run.` in the log of another program."""
    raise UnknownValue


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


def _matching_names(names: tuple[str, ...], measured: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        if "*" in name:
            yield from (each for each in measured if fnmatchcase(each, name))
        elif name in measured:
            yield name


def _shown(rule: HealthRule) -> str:
    """The expression of the value that is shown."""
    return rule.value or f"last({rule.metric})"


def _expressions(rule: HealthRule) -> Iterator[str]:
    yield from (rule.when, str(rule.hold), _shown(rule))
    if rule.threshold:
        yield rule.threshold
    for text in (rule.text, rule.cause, *rule.fix.values()):
        yield from {*_PLACE.findall(text)} - _FIXED_PLACES


def _value_expression(rule: HealthRule) -> str:
    """The rule's `value`; empty where it is only a mean, an extreme or the last value of the rule's own metric."""
    plain = _PLAIN_VALUE.fullmatch(rule.value)
    return "" if not rule.value or (plain and plain[1] == rule.metric) else " ".join(rule.value.split())
