"""Whether a run reached its goal: its final held-out score, with the 95 % interval, against a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.core.metrics import HeldOut, better, label
from launcher.views.record import RunRecord

UNKNOWN = "there is no validation, so nothing is known of held-out data"
Outcome = Literal["reached", "not reached", "not measured"]
Status = Literal["pass", "fail", "not measured", "no bound"]


@dataclass(frozen=True)
class Goal:
    """The value that the held-out score must reach; a loss must not exceed it."""

    value: float
    at_most: bool = False

    @property
    def text(self) -> str:
        return f"held-out score {'<=' if self.at_most else '>='} {self.value:g}"

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
        return f"Goal {self.goal.text}: {self.outcome}" if self.goal else "No goal was given"

    @property
    def status(self) -> Status:
        """As that of a row of a report."""
        return "pass" if self.outcome == "reached" else "fail" if self.outcome == "not reached" else "not measured"


def judge_goal(record: RunRecord, value: float | None) -> GoalResult:
    """Compare the final validation of a run with the value that it should reach."""
    measured = record.final
    at_most = measured is not None and better(measured.name) == "down"
    goal = None if value is None else Goal(value, at_most)
    if measured is None:
        return GoalResult("not measured", goal, None, (UNKNOWN,) if goal else ())
    finding = f"{label(measured.name)} is {measured.shown} at step {measured.step}"
    if goal is None:
        return GoalResult("not measured", None, measured, (finding,))
    reached = goal.met_by(measured.value)
    lines = f"{finding}; the goal is {goal.text}", _certainty(goal, measured, reached)
    return GoalResult("reached" if reached else "not reached", goal, measured, lines)


def _certainty(goal: Goal, measured: HeldOut, reached: bool) -> str:
    if measured.low is None or measured.high is None:
        return "no interval is known, so how certain that is cannot be said"
    if goal.met_by(measured.low) == goal.met_by(measured.high):
        return f"the whole 95 % interval {'meets' if reached else 'misses'} the goal"
    other = "miss" if reached else "meet"
    return f"the 95 % interval also holds values that {other} the goal: more held-out prompts would decide it"
