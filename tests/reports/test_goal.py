"""The final held-out score against a goal (S2-30)."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.events import Ended, Step
from launcher.core.problems import Problems
from launcher.reports.goal import Goal, GoalResult, judge_goal, parse_goal
from launcher.views.record import read_record


@pytest.mark.parametrize(("text", "goal"), [
    ("0.55", Goal(0.55)),
    (" 1 ", Goal(1.0)),
    ("val-core/gsm8k/reward/mean@1>=0.5", Goal(0.5, "val-core/gsm8k/reward/mean@1")),
    ("val/loss <= 2e-1", Goal(0.2, "val/loss", at_most=True)),
    ("x>=-3", Goal(-3.0, "x")),
])  # fmt: skip
def test_a_goal_is_read(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal


@pytest.mark.parametrize("text", ["", "high", "x>0.5", "nan", "1e999", "a b>=1", ">=", "0.5.5", "--"])
def test_what_is_no_goal_is_named(text: str) -> None:
    with pytest.raises(Problems, match=r"use 0\.55, METRIC>=0\.55"):
        parse_goal(text)


def judged(make_run: Any, events: list[Any], goal: str | None = "0.55") -> GoalResult:
    record = read_record(make_run(events))
    return judge_goal(record, parse_goal(goal) if goal else None)


def test_the_guides_example_is_reached(make_run: Any, logged: Any) -> None:
    """S2-30: 0.62 where 0.55 was the goal."""
    found = judged(make_run, [*logged.begin(), logged.validated(0, 300, 1000), logged.validated(100, 620, 1000)])
    assert found.outcome == "reached" and found.title == "Goal held-out score >= 0.55: reached"
    assert found.lines[0] == "gsm8k is 0.62 [0.59–0.65] at step 100; the goal is held-out score >= 0.55"
    assert found.lines[1] == "the whole 95 % interval meets the goal"


def test_what_an_interval_leaves_open_is_said(make_run: Any, logged: Any) -> None:
    for name, right, outcome, word in (("a", 12, "reached", "miss"), ("b", 10, "not reached", "meet")):
        record = read_record(make_run([*logged.begin(), logged.validated(9, right, 20)], name))
        found = judge_goal(record, Goal(0.55))
        assert found.outcome == outcome
        assert (
            found.lines[1]
            == f"the 95 % interval also holds values that {word} the goal: more held-out prompts would decide it"
        )


def test_a_goal_of_any_metric(make_run: Any, logged: Any) -> None:
    events = [logged.validated(10, 5, 10), Step(at=111.0, step=11, metrics={"val/loss": 0.3, "actor/entropy": 0.2})]
    record = read_record(make_run([*logged.begin(), *events]))
    assert judge_goal(record, parse_goal("val/loss<=0.35")).outcome == "reached"
    assert judge_goal(record, parse_goal("actor/entropy>=0.3")).outcome == "not reached"
    assert judge_goal(record, parse_goal(f"{logged.mean}>=0.5")).measured.low == pytest.approx(0.2366, abs=1e-3)
    with pytest.raises(Problems, match="did you mean actor/entropy"):
        judge_goal(record, parse_goal("actor/entropi>=1"))


def test_a_loss_is_to_fall(make_run: Any, logged: Any) -> None:
    events = [Step(at=float(step), step=step, metrics={"val/loss": 2.0 - step / 10}) for step in (0, 10)]
    found = judged(make_run, [*logged.begin(), *events], "1.5")
    assert (found.outcome, found.title) == ("reached", "Goal held-out score <= 1.5: reached")
    assert "no interval is known" in found.lines[1]


@pytest.mark.parametrize("events", [[], [Ended(at=9.0, how="failed", why="out of memory")]])
def test_without_a_validation_nothing_is_known(make_run: Any, logged: Any, events: list[Any]) -> None:
    for goal in ("0.55", "x>=1", None):
        found = judge_goal(
            read_record(make_run([*logged.begin(), *events], str(goal)[:1])), parse_goal(goal) if goal else None
        )
        assert found.outcome == "not measured"
        assert found.lines == (("there is no validation, so nothing is known of held-out data",) if goal else ())
