"""Whether a run reached its goal: its final held-out score, with the 95 % interval, against a value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from launcher.core.metrics import HeldOut, better, interval_of, label
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.views.record import RunRecord

_GOAL = re.compile(r"(?:(?P<name>\S+?)\s*(?P<sign><=|>=))?\s*(?P<value>[-+.0-9eE]+)")
UNKNOWN = "there is no validation, so nothing is known of held-out data"
Outcome = Literal["reached", "not reached", "not measured"]


@dataclass(frozen=True)
class Goal:
    """The value that a metric must reach; without `metric`, the main held-out score."""

    value: float
    metric: str = ""
    at_most: bool = False

    @property
    def text(self) -> str:
        return f"{self.metric or 'held-out score'} {'<=' if self.at_most else '>='} {self.value:g}"

    def met_by(self, value: float) -> bool:
        return value <= self.value if self.at_most else value >= self.value


@dataclass(frozen=True)
class GoalResult:
    """Whether the goal was reached, and sentences about it."""

    outcome: Outcome
    goal: Goal | None
    measured: HeldOut | None
    lines: tuple[str, ...]
    """The finding, then how certain it is."""

    @property
    def title(self) -> str:
        if self.goal:
            return f"Goal {self.goal.text}: {self.outcome}"
        return "No goal was given"


def parse_goal(text: str) -> Goal:
    """`0.55`, `METRIC>=0.55` or `METRIC<=0.3`. Raises `Problems`."""
    found = _GOAL.fullmatch(text.strip())
    try:
        value = float(found["value"]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise Problems(Problem("--goal", f"cannot read {short_repr(text)}", "use 0.55, METRIC>=0.55 or METRIC<=0.55"))
    return Goal(value, found["name"] or "", found["sign"] == "<=")


def judge_goal(record: RunRecord, goal: Goal | None) -> GoalResult:
    """Compare a run with its goal. Raises `Problems` where the run has metrics, but none of the goal's name."""
    measured = record.final if goal is None else _find_measured(record, goal)
    if measured is None:
        return GoalResult("not measured", goal, None, (UNKNOWN,) if goal else ())
    finding = f"{label(measured.name)} is {measured.shown} at step {measured.step}"
    if goal is None:
        return GoalResult("not measured", None, measured, (finding,))
    if not goal.metric and better(measured.name) == "down":
        goal = Goal(goal.value, goal.metric, at_most=True)
    reached = goal.met_by(measured.value)
    lines = f"{finding}; the goal is {goal.text}", _certainty(goal, measured, reached)
    return GoalResult("reached" if reached else "not reached", goal, measured, lines)


def _find_measured(record: RunRecord, goal: Goal) -> HeldOut | None:
    if not goal.metric or (record.final and goal.metric == record.final.name):
        return record.final
    if goal.metric in record.traces:
        trace = record.traces[goal.metric]
        if not trace.count:  # never finite
            return None
        ends = interval_of(goal.metric, record.last_validation) or ()
        return HeldOut(trace.buckets[-1].last, goal.metric, trace.last, *ends)
    if not record.traces:
        return None
    fix = suggest(goal.metric, sorted(record.traces))
    raise Problems(Problem(f"--goal {goal.metric}", "the run has no metric of that name", fix, "not-found"))


def _certainty(goal: Goal, measured: HeldOut, reached: bool) -> str:
    if measured.low is None or measured.high is None:
        return "no interval is known, so how certain that is cannot be said"
    if goal.met_by(measured.low) == goal.met_by(measured.high):
        return f"the whole 95 % interval {'meets' if reached else 'misses'} the goal"
    other = "miss" if reached else "meet"
    return f"the 95 % interval also holds values that {other} the goal: more held-out prompts would decide it"
