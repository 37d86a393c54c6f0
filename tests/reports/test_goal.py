"""The final held-out score against a goal (S2-30)."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.events import Ended, Step
from launcher.reports.goal import UNKNOWN, GoalResult, judge_goal
from launcher.views.record import read_record


def judged(make_run: Any, events: list[Any], goal: float | None = 0.55) -> GoalResult:
    return judge_goal(read_record(make_run(events)), goal)


def test_the_guides_example_is_reached(make_run: Any, logged: Any) -> None:
    """S2-30: 0.62 where 0.55 was the goal."""
    found = judged(make_run, [*logged.begin(), logged.validated(0, 300, 1000), logged.validated(100, 620, 1000)])
    assert found.outcome == "reached" and found.title == "Goal held-out score >= 0.55: reached"
    assert found.lines[0] == "gsm8k is 0.62 [0.59–0.65] at step 100; the goal is held-out score >= 0.55"
    assert found.lines[1] == "the whole 95 % interval meets the goal"


def test_what_an_interval_leaves_open_is_said(make_run: Any, logged: Any) -> None:
    for name, right, outcome, word in (("a", 12, "reached", "miss"), ("b", 10, "not reached", "meet")):
        record = read_record(make_run([*logged.begin(), logged.validated(9, right, 20)], name))
        found = judge_goal(record, 0.55)
        assert found.outcome == outcome
        assert (
            found.lines[1]
            == f"the 95 % interval also holds values that {word} the goal: more held-out prompts would decide it"
        )


def test_a_loss_is_to_fall(make_run: Any, logged: Any) -> None:
    events = [Step(at=float(step), step=step, metrics={"val/loss": 2.0 - step / 10}) for step in (0, 10)]
    found = judged(make_run, [*logged.begin(), *events], 1.5)
    assert (found.outcome, found.title) == ("reached", "Goal held-out score <= 1.5: reached")
    assert "no interval is known" in found.lines[1]


@pytest.mark.parametrize("events", [[], [Ended(at=9.0, how="failed", why="out of memory")]])
def test_without_a_validation_nothing_is_known(make_run: Any, logged: Any, events: list[Any]) -> None:
    record = read_record(make_run([*logged.begin(), *events]))
    assert judge_goal(record, None).lines == ()
    found = judge_goal(record, 0.55)
    assert (found.outcome, found.lines) == ("not measured", (UNKNOWN,))
