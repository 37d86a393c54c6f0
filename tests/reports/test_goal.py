"""The final held-out score against a goal (S2-30)."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.events import Ended, Event, Step
from launcher.reports.goal import UNKNOWN, judge_goal
from tests.reports.made import begin, validated

OPEN = "the 95 % interval also holds values that {} the goal: more held-out prompts would decide it"
CASES: dict[str, tuple[list[Event], float, str, str]] = {
    "S2-30, 0.62 where 0.55 was the goal": (
        [validated(0, 300, 1000), validated(100, 620, 1000)], 0.55, "Goal held-out score >= 0.55: reached",
        "gsm8k is 0.62 [0.59–0.65] at step 100; the goal is held-out score >= 0.55\n"
        "the whole 95 % interval meets the goal",
    ),
    "above, within chance": ([validated(9, 12, 20)], 0.55, "Goal held-out score >= 0.55: reached", OPEN.format("miss")),
    "below, within chance": (
        [validated(9, 10, 20)], 0.55, "Goal held-out score >= 0.55: not reached", OPEN.format("meet")
    ),
    "a loss is to fall": (
        [Step(at=float(step), step=step, metrics={"val/loss": 2.0 - step / 10}) for step in (0, 10)], 1.5,
        "Goal held-out score <= 1.5: reached", "no interval is known, so how certain that is cannot be said",
    ),
    "no validation": ([], 0.55, "Goal held-out score >= 0.55: not measured", UNKNOWN),
    "none, as it failed": (
        [Ended(at=9.0, how="failed", why="memory")], 0.55, "Goal held-out score >= 0.55: not measured", UNKNOWN
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "goal", "title", "lines"), CASES.values(), ids=CASES)
def test_a_goal_is_judged(record: Any, events: list[Event], goal: float, title: str, lines: str) -> None:
    run = record([*begin(), *events])
    found, without = judge_goal(run, goal), judge_goal(run, None)
    assert found.title == title and "\n".join(found.lines).endswith(lines)
    assert (without.outcome, len(without.lines)) == ("not measured", int(lines != UNKNOWN))
