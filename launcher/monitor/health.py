"""Judges a run of ours as it goes: by the rules of its health profile, and by those that know its settings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean

from launcher.core.events import Alert, Event, Loaded, Step, Usage, WeightsMoved
from launcher.health.advice import smallest_rate, with_one_rate, with_rate
from launcher.health.judge import Judge
from launcher.health.profiles import rules_of
from launcher.monitor.history import HOLD, History
from launcher.monitor.run_rules import (
    COVERED,
    EVERY_STEP,
    FACTS,
    LONGEST,
    METRICS,
    OF_VALIDATIONS,
    PATIENT,
    RULES,
    Finding,
    Rule,
    found,
    level_of,
    no_groups,
    no_signal,
    nothing_learnt,
)
from launcher.spec.health import HealthRules
from launcher.spec.run import RunSpec

SOURCE = "runs of rlrun, ruined in known ways and healthy"
NO_SIGNAL = ("no-signal", "signal-lost", "no-advantages", "signal-ended", "signal-scarce")
TWINS: Mapping[str, tuple[str, ...]] = {
    "score-fell": ("reward-collapsed", "reward-lost", "reward-degraded", "held-out-fell"),
    "reward-exploited": ("reward-exploited", "held-out-fell", "gap-grows"),
    "worse-than-before": ("held-out-fell", "val-loss-rose"),
    "past-its-best": ("held-out-fell", "val-loss-rose"),
    "no-signal": NO_SIGNAL,
    "no-groups": NO_SIGNAL,
    "solved": ("signal-solved",),
    "not-finite": ("not-finite",),
    "answers-cut": ("answers-cut", "answers-cut-and-wrong", "answers-too-long"),
    "length-changed": ("answers-grow", "answers-grow-slowly", "answers-shrink"),
    "entropy-exploded": ("entropy-exploded",),
    "entropy-collapsed": ("entropy-exhausted", "entropy-low"),
    "far-from-reference": ("kl-exploded", "kl-grows"),
    "no-gradient": ("update-without-effect",),
    "loss-diverged": ("loss-rose", "val-loss-rose"),
    "nothing-learnt": ("pairs-not-learnt",),
}
"""Of a rule that knows the settings, the profile's rules that find the same: what was reported by one is not reported
again by the other, unless it is worse then."""
_BLANK = re.compile(r" (?![^{]*\})")  # not in an expression
_SETTING = re.compile(r"[a-z][\w.]*=[^\s,]+")
FEW_PROMPTS = 4  # of a step: below, its reward is of these prompts rather than of the policy
STEADY_PROMPTS = 8  # of a step: below, two steps of hard prompts look like a fall, and only `score-fell` judges it
FIRST_SIGNAL = 16  # steps without a reward after which a run that goes on is called lost: it may find one late
SERIOUS = {"info": 0, "warn": 1, "critical": 2}


class Health:
    """What the rules find in a run, each once.

    Raises `Problems` for a profile that cannot be read.
    """

    def __init__(self, run: RunSpec) -> None:
        self.seen = History(run)
        self._judge = Judge(_suited(run))
        self._held: Counter[Rule] = Counter()
        self._began: dict[Rule, int] = {}
        self._validations: Counter[Rule] = Counter()
        self._reported: dict[str, int] = {}  # of each rule how serious the alert was, its twins included
        self._now: dict[Rule, Finding] = {}
        self._usage: dict[int, Usage] = {}
        self._rate = math.inf  # the smallest learning rate that was advised

    def hear(self, event: Event) -> list[Alert]:
        """The alerts that an event gives rise to."""
        if isinstance(event, Usage):
            self._usage[event.rank] = event
        if not isinstance(event, Loaded | Step | WeightsMoved):
            return []
        by_settings = self._by_settings(event)
        by_profile = self._judge.see(self._with_usage(event)) if isinstance(event, Step) else []
        new = [alert for alert in (*by_settings, *map(self._with_settings, by_profile)) if self._is_new(alert)]
        self._rate = smallest_rate((alert.fix for alert in new), self.seen.run.optim.lr, self._rate)
        return with_one_rate(new, self.seen.run.optim.lr, self._rate)

    def _with_settings(self, alert: Alert) -> Alert:
        """In the words of a rule that knows the settings, where one finds the same now: its fix suits the run."""
        same = (each for each in self._now.values() if alert.rule in (each.rule, *TWINS.get(each.rule, ())))
        if (finding := next(same, None)) is None:
            return alert
        return replace(alert, rule=finding.rule, text=finding.text, fix=finding.fix.removeprefix("use "))

    def _is_new(self, alert: Alert) -> bool:
        """Whether neither its rule nor one that finds the same has been reported, at least as serious."""
        serious = SERIOUS[alert.level]
        same = {alert.rule, *TWINS.get(alert.rule, ()), *(name for name, twins in TWINS.items() if alert.rule in twins)}
        new = max(self._reported.get(name, -1) for name in same) < serious
        self._reported[alert.rule] = max(self._reported.get(alert.rule, -1), serious)
        return new

    def replay(self, events: Iterable[Event]) -> list[Alert]:
        """Hear what was logged before; the alerts that are missing from it, as the launcher was killed."""
        given, logged = list[Alert](), set[tuple[int, str]]()
        for event in events:
            given += self.hear(event)
            if isinstance(event, Alert):
                logged.add((event.step, event.text))
        return [alert for alert in given if (alert.step, alert.text) not in logged]

    def verdict(self) -> list[Finding]:
        """What is wrong at the end; nothing for a run that learnt something."""
        if not self.seen.steps:
            return [found("no-step", "no step was taken", "trainer.total_training_steps=100")]
        ours = [finding for finding in self._standing(HOLD) if finding.ruins]
        covered = {twin for finding in ours for twin in TWINS.get(finding.rule, ())}
        others = [each for each in self._judge.standing() if each.level == "critical" and each.rule not in covered]
        every = [*ours, *(Finding(each.rule, each.text.partition("; ")[0], f"use {each.fix}") for each in others)]
        own = self.seen.run.optim.lr
        least = smallest_rate((each.fix for each in every), own, self._rate)
        return [
            replace(
                each, fix=with_rate(each.fix, own, least),
                settings=tuple(with_rate(setting, own, least) for setting in each.settings),
            )
            for each in every
        ]  # fmt: skip

    def _with_usage(self, event: Step) -> Step:
        """With what the GPUs do, as the profile's rules see it."""
        busy = [each.gpu_percent for each in self._usage.values() if each.gpu_percent is not None]
        used = [(each.gpu_memory_bytes, each.gpu_memory_total_bytes) for each in self._usage.values()]
        shares = [bytes_ / total for bytes_, total in used if bytes_ is not None and total]
        more = {"perf/gpu_percent": fmean(busy)} if busy else {}
        more |= {"perf/gpu_memory_share": max(shares)} if shares else {}
        return replace(event, metrics={**event.metrics, **more}) if more else event

    # ---- rules that know the settings

    def _by_settings(self, event: Loaded | Step | WeightsMoved) -> list[Alert]:
        before = len(self.seen.validations)
        self.seen.add(event)
        if isinstance(event, Loaded) or not (self._due(event.step) or len(self.seen.validations) > before):
            return []
        self._now = {rule: finding for rule in RULES if (finding := rule(self.seen))}
        self._held = Counter({rule: self._held[rule] + isinstance(event, Step) for rule in self._now})
        self._began = {rule: self._began.get(rule, event.step) for rule in self._now}
        new = len(self.seen.validations) - before
        self._validations = Counter({rule: self._validations[rule] + new for rule in self._now})
        looks = HOLD if self.seen.over else max(HOLD, min(self.seen.planned // 4, LONGEST))
        since = {finding.rule: self._began[rule] for rule, finding in self._now.items()}
        return [self._alert(finding, event.step, since[finding.rule]) for finding in self._standing(looks)]

    def _alert(self, finding: Finding, step: int, since: int) -> Alert:
        metric = self.seen.any_of(METRICS.get(finding.rule, ()))
        values = self.seen.series.get(metric)
        return Alert(
            step=step, text=finding.text, level=level_of(finding), rule=finding.rule, metric=metric, since=since,
            value=values[-1] if values else None, fix=finding.fix.removeprefix("use "), source=SOURCE,
        )  # fmt: skip

    def _due(self, step: int) -> bool:
        """Whether to look: at each step of a short run, and seldom in a long one, as a look costs the same in both."""
        return step % max(step // EVERY_STEP, 1) == 0 or self.seen.over

    def _standing(self, looks: int) -> list[Finding]:
        """What holds now, and has held for a while: of `PATIENT` rules for so many looks."""
        standing = [finding for rule, finding in self._now.items() if self._holds(rule, looks)]
        superfluous = set[str]().union(*(COVERED.get(each.rule, set()) for each in standing))
        if len(standing) > 1:
            superfluous.add("nothing-learnt")
        return [each for each in standing if each.rule not in superfluous]

    def _holds(self, rule: Rule, looks: int) -> bool:
        if rule in (no_signal, no_groups) and not self.seen.over:
            return self._held[rule] > FIRST_SIGNAL - self.seen.enough
        if rule in FACTS or (rule is nothing_learnt and self.seen.over):  # how far the weights moved is known last
            return True
        if rule in OF_VALIDATIONS:  # they are far apart
            return self.seen.over or self._validations[rule] > 1
        return self._held[rule] >= (looks if rule in PATIENT else HOLD)


def _suited(run: RunSpec) -> HealthRules:
    """The run's profile without what rules with the settings find better: warnings, and what becomes of the reward and
    the loss where steps are not alike, as rows in their order may become harder, and the reward of few prompts is
    theirs. Groups say nothing where answers are compared by a critic, or across prompts. Fixes name only settings that
    the run has, with values other than its own."""
    profile = rules_of(run.health, run.code_dir)
    known = {twin for twins in TWINS.values() for twin in twins}
    prompts = run.data.train_batch_size
    unlike = not run.data.shuffle or prompts < FEW_PROMPTS
    ungrouped = run.algorithm.sampled and ("critic" in run.algorithm.needs or run.sampler.n < 2)
    unsteady = ("reward-collapsed", "reward-degraded") if run.algorithm.sampled and prompts < STEADY_PROMPTS else ()
    rules = {
        name: replace(rule, fix={program: _usable(text, run) for program, text in rule.fix.items()})
        for name, rule in profile.rules.items()
        if not (unlike and rule.metric in ("reward", "loss"))
        and name not in unsteady
        and not (ungrouped and name == "no-advantages")
        and (rule.level == "critical" or name not in known)
    }  # fmt: skip
    return replace(profile, rules=rules)


def _usable(text: str, run: RunSpec) -> str:
    """Without arguments whose setting the run's choices do not have, or that are the run's own."""
    words = list[str]()
    for word in _BLANK.split(text):
        if usable := _argument(word, run):
            words.append(usable)
        elif word.endswith(",") and words:
            words[-1] = f"{words[-1].rstrip(',')},"
    return re.sub(r"^(and|or) |,? (and|or)$", "", " ".join(words).strip(" ,"))


def _argument(word: str, run: RunSpec) -> str:
    key, given, value = word.rstrip(",").partition("=")
    if not given:
        return word
    if key == "sampler.n":
        return word.replace(value, str(max(2 * run.sampler.n, 8)))
    own = _setting(run, key)
    return "" if own in (None, value, f"{value}.0") else word


def _setting(run: object, key: str) -> str | None:
    """As text; None where the run's choices do not have it."""
    head, _, rest = key.partition(".")
    if head not in vars(run):
        return None
    return _setting(vars(run)[head], rest) if rest else str(vars(run)[head])


def leading_arguments(fix: str) -> tuple[str, ...]:
    """The arguments that a fix begins with: of `optim.lr=1e-6 seed=1, from the start` the first two."""
    arguments = list[str]()
    for word in fix.split(" "):
        if _SETTING.fullmatch(word.removesuffix(",")) is None:
            break
        arguments.append(word.removesuffix(","))
        if word.endswith(","):
            break
    return tuple(arguments)
