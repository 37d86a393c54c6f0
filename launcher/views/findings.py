"""What health rules find in a run or log: the most serious first, with what helps in the program's own spelling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.core.events import Alert, Event, Level, Phase, Step, Waiting, is_damage
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import metric
from launcher.core.numbers import compact
from launcher.core.problems import Problems
from launcher.core.state import LEVELS, RunState, after
from launcher.core.verdict import RunVerdict
from launcher.health.advice import MOST_SLOWER, with_one_rate
from launcher.health.judge import Judge
from launcher.health.profiles import MEASURED, read_profile
from launcher.logs import endings
from launcher.spec.health import HealthRules
from launcher.views.read import LogOrRun

if TYPE_CHECKING:
    from launcher.health.run_judge import RunJudge

PROGRAMS = {
    "rlrun": "rlrun", "verl": "verl", "verl_file": "verl", "trl": "trl", "transformers": "trl", "trainer_state": "trl",
}  # fmt: skip
"""The program in whose spelling fixes name settings, by the form of the log; other forms get words."""


@dataclass(frozen=True)
class Findings:
    """The alerts, the last step that was judged, and the verdict on a run of rlrun."""

    alerts: list[Alert]
    last_step: int
    verdict: RunVerdict | None = None

    @property
    def nodes(self) -> list[Alert]:
        """The alerts, and the verdict as one more alert."""
        if self.verdict is None:
            return self.alerts
        level: Level = "info" if self.verdict.kind in ("learned", "cannot tell") else "warn"
        as_alert = Alert(step=self.last_step, text=self.verdict.line, level=level, rule="verdict", fix=self.verdict.fix)
        return [*self.alerts, as_alert]

    @property
    def counts(self) -> str:
        """`1 critical, 2 warn`"""
        counts = {level: sum(alert.level == level for alert in self.alerts) for level in reversed(LEVELS)}
        return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def judge_of(rules: HealthRules | None, kind: str) -> Judge:
    """The judge of a log of this form; without rules, by those of the profile `measured`."""
    return Judge(rules or read_profile(MEASURED), PROGRAMS.get(kind, "any"))


def find_problems(source: LogOrRun, rules: HealthRules | None, own: RunJudge | None = None) -> Findings:
    """Judge a log or run by `rules`; without rules, a run of rlrun by its `own` judge, which knows its settings.

    Raises `Problems` where there are neither steps nor findings: nothing was judged.
    """
    judge = judge_of(rules, source.kind)
    see: Callable[[Event], list[Alert]] = judge.see if own is None or rules else own.hear
    alerts, last, rate, state, waits = list[Alert](), -1, 0.0, RunState(), Waiting(text="")
    for event in source.events():
        waits = event if isinstance(event, Waiting) else Waiting(text="") if isinstance(event, Phase | Step) else waits
        state = after(state, event) if own else state
        if isinstance(event, Step):
            last, rate = max(last, event.step), max(rate, *_learning_rates(event))
        alerts += see(event)
        if isinstance(event, Alert) and (is_damage(event) or source.log is not None or _is_logger_warning(event)):
            alerts.append(with_fix(event, judge))
    alerts += _still_waiting(waits, max(last, 0))
    if last < 0 and not alerts:
        raise Problems(source.no_metrics)
    alerts += [] if own else judge.finish()
    return Findings(_most_serious_first(alerts, rate, rules), max(last, 0), _run_verdict(own, state))


def _is_logger_warning(alert: Alert) -> bool:
    """Whether it is a warning that a script logged, or that a row of its log was left out."""
    return alert.rule in ("logger", "log_status") and alert.level != "info"


def with_fix(alert: Alert, judge: Judge) -> Alert:
    """The alert of an error that ended a program, with the fix for its rule in the program's own spelling."""
    return replace(alert, fix=judge.fix_of(endings.fixes_of(alert.rule)) or alert.fix)


def _still_waiting(waits: Waiting, step: int) -> list[Alert]:
    """An alert if nothing came after the run began to wait for something."""
    if not waits.for_s:
        return []
    text, fix = f"it waits for {waits.text}", "a faster function, or a smaller reward.timeout_s"
    return [Alert(step=step, level="critical", rule="waits", text=text, fix=fix)]


def _most_serious_first(alerts: list[Alert], rate: float, rules: HealthRules | None) -> list[Alert]:
    most_slower = math.inf if rules else MOST_SLOWER  # rules of a guide name rates that do not depend on the run's own
    return sorted(with_one_rate(alerts, rate, most_slower=most_slower), key=lambda alert: -LEVELS.index(alert.level))


def _run_verdict(own: RunJudge | None, state: RunState) -> RunVerdict | None:
    return (state.verdict or own.verdict(state)) if own else None


def _learning_rates(event: Step) -> Iterator[float]:
    """The finite learning rates of the policy in a step, and 0."""
    yield 0.0
    rates = (value for name, value in event.metrics.items() if canonical(name) in ("actor/lr", "train/lr"))
    yield from filter(math.isfinite, rates)


def evidence_line(alert: Alert) -> str:
    """`actor/entropy, is 0.01, bound 0.1: what the metric measures`; empty without a metric."""
    if not alert.metric:
        return ""
    subject = f"{alert.measure} " if alert.measure else ""
    numbers = [f"{subject}is {compact(alert.value)}"] if alert.value is not None else []
    numbers += [f"bound {compact(alert.threshold)}"] if alert.threshold is not None else []
    entry = metric(canonical(alert.metric))
    return ", ".join([alert.metric, *numbers]) + (f": {entry.meaning}" if entry else "")
