"""Judges a run of rlrun as it goes: by the rules of its health profile, and by rules that know its settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from launcher.core.events import Alert, Event, Loaded, Step, Usage, WeightsMoved
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, nearest
from launcher.core.state import RunState
from launcher.core.verdict import RunVerdict
from launcher.health.advice import smallest_rate, usable, with_one_rate
from launcher.health.expressions import PLAIN, evaluate, namespace, parse_condition
from launcher.health.held_out import EndFacts, HeldOutResults, judge_end
from launcher.health.judge import Judge
from launcher.health.profiles import profile_names, read_profile_file, read_rules, rules_of
from launcher.health.run_facts import OwnRun
from launcher.health.series import UnknownValue
from launcher.spec.health import HealthRules
from launcher.spec.run import RunSpec

SHOWN = 2  # findings in the last line of a run
OF_VERDICT = {"worse-than-before", "past-its-best"}
"""Rules on validations while a run goes on; at its end the verdict says the same."""
OF_NO_CHANGE = {"nothing-learnt", "answers-unchanged"}
"""Rules that may miss, in the noise, a change that the test of single rows finds."""
RULES = conf_dir() / "health" / "run" / "rules.yaml"


class RunJudge:
    """What the rules find in a run, each once.

    Raises `Problems` for a profile that cannot be read.
    """

    def __init__(self, run: RunSpec) -> None:
        self.run = run
        self._facts = OwnRun(run)
        run_rules, profile = read_run_rules(run)
        self._run_rule_names = run_rules.rules.keys()
        self._judge = Judge(_rules_for(run, self._facts, run_rules, profile), run=self._facts)
        self._usage: dict[int, Usage] = {}
        self._results = HeldOutResults()
        self._lowest_rate = math.inf  # the lowest learning rate advised so far

    def hear(self, event: Event) -> list[Alert]:
        """The alerts that an event gives rise to."""
        facts = self._facts
        self._results.see(event)
        match event:
            case Usage():
                self._usage[event.rank] = event
                return []
            case Loaded():
                facts.load(event)
                return []
            case WeightsMoved():
                facts.moved = event.distance
                step = Step(step=event.step, metrics={"run/moved": max(event.distance.values(), default=math.nan)})
            case Step():
                facts.see(event)
                step = self._add_facts(event)
            case _:
                return []
        new = self._judge.see(step)
        self._lowest_rate = smallest_rate((alert.fix for alert in new), self.run.optim.lr, self._lowest_rate)
        return with_one_rate(new, self.run.optim.lr, self._lowest_rate)

    def replay(self, events: Iterable[Event]) -> list[Alert]:
        """Hear the events of an earlier launcher; returns the alerts that it did not log before it was killed."""
        alerts, logged = list[Alert](), set[tuple[int, str]]()
        for event in events:
            alerts += self.hear(event)
            if isinstance(event, Alert):
                logged.add((event.step, event.text))
        return [alert for alert in alerts if (alert.step, alert.text) not in logged]

    def verdict(self, state: RunState) -> RunVerdict:
        """The verdict on the run."""
        facts, training = self._facts, None
        with suppress(UnknownValue):
            score = facts.series["score"]
            training = (score.fifths().start, score.fifths().end, score.gained())
        tokens = self.run.model.shape.vocab_size if self.run.model.shape else 0
        known = EndFacts(self.reasons(), training, tokens, facts.lr_by_5(), facts.faster())
        return judge_end(state, self._results, known)

    def reasons(self, *, learned: bool = False) -> list[Alert]:
        """The findings that the last line of a run names besides its verdict, at most `SHOWN`."""
        not_named = OF_VERDICT | OF_NO_CHANGE if learned else OF_VERDICT
        return [alert for alert in self.standing() if alert.rule not in not_named][:SHOWN]

    def standing(self) -> list[Alert]:
        """The findings that hold at the end; none for a run that learnt something."""
        if not self._facts.steps:
            fix = "trainer.total_training_steps=100"
            return [Alert(step=0, text=f"no step was taken; use {fix}", rule="no-step", fix=fix)]
        standing = [each for each in self._judge.standing() if each.rule.level != "info"]
        own = [each for each in standing if each.name in self._run_rule_names]
        covered = {name for each in own for name in each.rule.covers}
        others = [each for each in standing if each not in own and each.rule.level == "critical" and each.reported]
        alerts = [self._judge.alert_of(each) for each in (*own, *others) if each.name not in covered]
        return with_one_rate(alerts, self.run.optim.lr, self._lowest_rate)

    def _add_facts(self, event: Step) -> Step:
        """`event` with use of the GPUs, the latest validation, and 0 for `reward/faults`, which is logged only where an
        answer lacked a score."""
        facts = {"reward/faults": 0.0} if "critic/score/mean" in event.metrics else {}
        busy = [usage.gpu_percent for usage in self._usage.values() if usage.gpu_percent is not None]
        used = [(usage.gpu_memory_bytes, usage.gpu_memory_total_bytes) for usage in self._usage.values()]
        shares = [bytes_ / total for bytes_, total in used if bytes_ is not None and total]
        facts |= {"perf/gpu_percent": fmean(busy)} if busy else {}
        facts |= {"perf/gpu_memory_share": max(shares)} if shares else {}
        latest = self._facts.validations[-1:]
        facts |= {"run/held_out": latest[0].value} if latest and latest[0].step == event.step else {}
        return replace(event, metrics={**facts, **event.metrics})


def rule_problems(run: RunSpec) -> list[Problem]:
    """Why a run's rules cannot be read; empty where they can. Rules that come with rlrun are checked by its tests, and
    here only together with rules of a user."""
    settings = run.health
    if not (run.code_dir or settings.rules or settings.metrics) and settings.profile in (None, *profile_names()):
        return []
    try:
        for rules in read_run_rules(run):
            Judge(rules, run=OwnRun(run))
    except Problems as error:
        return error.problems
    return []


def read_run_rules(run: RunSpec) -> tuple[HealthRules, HealthRules]:
    """(rules that know settings, rules of the run's profile), changed as `health.rules` says; their conditions are not
    parsed yet. Raises `Problems`."""
    settings, code_dir = run.health, Path(run.code_dir) if run.code_dir else None
    run_rules = dict(read_rules(RULES))
    profile = dict(read_profile_file(settings.profile, code_dir)) if settings.profile else {}
    metrics = {name: list(names) for name, names in settings.metrics.items()}
    profile["metrics"] = {**profile.get("metrics", {}), **metrics}
    known, problems = [*run_rules["rules"], *profile.get("rules", {})], list[Problem]()
    for name, changes in settings.rules.items():
        if name not in known and "when" not in changes:
            got = "is no rule of the run's profile, and has no condition of its own"
            fix = f"did you mean {near}?" if (near := nearest(name, known)) else "use one of docs/health.md"
            problems.append(Problem(f"health.rules.{name}", got, fix, "unknown-setting"))
        node = run_rules if name in run_rules["rules"] else profile
        node["rules"] = {**node.get("rules", {}), name: {**node.get("rules", {}).get(name, {}), **changes}}
    if problems:
        raise Problems(problems)
    run_rules["metrics"] = {**run_rules["metrics"], **profile["metrics"]}
    return rules_of(run_rules, "health"), rules_of(profile, "health")


def _rules_for(run: RunSpec, facts: OwnRun, run_rules: HealthRules, profile: HealthRules) -> HealthRules:
    """The rules of both that apply to the run. Fixes name only settings that the run has, with other values than it
    has."""
    names, not_applied = namespace(PLAIN, facts.find), set(run_rules.rules)
    for case in run_rules.not_applied:
        if evaluate(parse_condition(case.when, (), PLAIN, facts.names), names):
            not_applied |= {*case.rules}
    suited = {name: rule for name, rule in profile.rules.items() if name not in not_applied}
    for name, rule in suited.items():  # a rule need not repeat what its twin reported
        twins = {twin: other.covers for twin, other in run_rules.rules.items() if name in other.covers}
        suited[name] = replace(rule, covers=(*rule.covers, *twins, *chain(*twins.values())))
    rules = {
        name: replace(rule, fix={program: usable(text, run) for program, text in rule.fix.items()})
        for name, rule in {**run_rules.rules, **suited}.items()
    }
    return replace(profile, metrics=run_rules.metrics, rules=rules)
