"""Whatever a reward does, each answer has a finite score or a reason why it has none; which rule scores which data
source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from launcher.config.compose import groups
from launcher.spec.reward import (
    MAX_SCORE,
    Answer,
    DetailedReward,
    Reward,
    Scores,
    is_metric_name,
    score_safely,
    to_score,
)
from launcher.spec.routes import ROUTES, route


class Each(Reward):
    """Fake: evaluates each response; it notes how many answers it was asked about."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def score(self, answers: Sequence[Answer]) -> list[float]:
        self.asked.append(len(answers))
        return [eval(answer.response) for answer in answers]


class Judges(DetailedReward):
    """Fake: gives these scores as they are."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def judge(self, answers: Sequence[Answer]) -> Scores:
        return self.given


class Gives(Reward):
    """Fake: gives these numbers as they are."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return self.given


NUMBER, FINITE = "expected a number", "expected a finite number"


@pytest.mark.parametrize(
    ("value", "score", "reason"),
    [
        (0.5, 0.5, ""),
        (np.float32(0.5), 0.5, ""),
        (np.array(2.0), 2.0, ""),
        (Decimal("0.25"), 0.25, ""),
        (-MAX_SCORE, -MAX_SCORE, ""),
        (1e30, None, f"gave 1e+30; expected a number between -1e+06 and {MAX_SCORE:g}"),  # it would drown its group
        (math.nan, None, f"gave nan; {FINITE}"),
        (math.inf, None, f"gave inf; {FINITE}"),
        (10**400, None, f"gave a int; {NUMBER}"),  # more than a float holds
        (None, None, f"gave None; {NUMBER}"),
        ("1.0", None, f"gave '1.0'; {NUMBER}"),
        (True, None, f"gave True; {NUMBER}"),
        (1 + 0j, None, f"gave a complex; {NUMBER}"),
        (np.zeros(2), None, f"gave a ndarray; {NUMBER}"),
    ],
)  # fmt: skip
def test_each_value_is_a_number_or_a_fault(value: Any, score: float | None, reason: str) -> None:
    for reward in (Judges(Scores([value, 0.25])), Gives([value, 0.25])):
        found = score_safely(reward, [Answer(""), Answer("")])
        assert list(found.faults) == [reason, ""]
        assert found.total[1] == 0.25
        assert math.isnan(found.total[0]) if score is None else found.total[0] == score
    assert to_score(value)[1] == reason


def test_where_it_raises_only_the_answer_at_fault_is_without_a_score() -> None:
    reward = Each()
    assert score_safely(reward, []) == Scores([], {}, []) and reward.asked == [], "nothing is asked about nothing"
    found = score_safely(reward, [Answer(text) for text in ("1", "1 / 0", "[][0]", "0.5")])
    assert [x for x in found.total if not math.isnan(x)] == [1.0, 0.5]
    assert [reason.partition(":")[0] for reason in found.faults] == ["", "ZeroDivisionError", "IndexError", ""]
    assert reward.asked == [4, 1, 1, 1, 1]  # each once more, and no more


ONES = [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Scores([1.0]), "gave 1 scores for 2 answers; expected one for each"),  # which is of which cannot be known
        (Scores([]), "gave 0 scores for 2 answers; expected one for each"),
        (Scores(0.5), "gave a float for scores; expected one for each answer"),  # type: ignore[arg-type]
        (Scores(ONES, {"a": [1]}), "gave 1 values of a for 2 answers; expected one for each"),
        (Scores(ONES, {}, [""]), "gave 1 faults for 2 answers; expected one for each"),
        (Scores(ONES, {}, None), "gave a NoneType for faults; expected one for each answer"),  # type: ignore[arg-type]
        (Scores(ONES, {"a": None}), "gave a NoneType for values of a; expected one for each answer"),  # type: ignore[dict-item]
        (Scores("11"), "gave a str for scores; expected one for each answer"),  # type: ignore[arg-type]
        (Scores(ONES, None), "AttributeError: 'NoneType' object has no attribute 'items'"),  # type: ignore[arg-type]
        (ONES, "gave a list; expected one number for each answer"),
        (Scores(np.ones(2), {"a": np.ones(2)}, np.array(["", ""])), ""),  # type: ignore[arg-type,dict-item]
        (Scores((1.0, 1.0), {"a": (1, 1)}, ()), ""),
    ],
)
def test_what_cannot_be_read_is_a_fault_and_nothing_else(given: Any, reason: str) -> None:
    found = score_safely(Judges(given), [Answer(""), Answer("")])
    assert [fault.partition(" (")[0] for fault in found.faults] == [reason] * 2
    assert found.total == ONES if not reason else all(map(math.isnan, found.total))


def test_a_part_that_is_no_number_is_nan() -> None:
    found = score_safely(Judges(Scores(ONES, {"right": [1, None]})), [Answer(""), Answer("")])
    assert found.parts["right"][0] == 1.0 and math.isnan(found.parts["right"][1])
    assert list(found.faults) == ["", ""]


@pytest.mark.parametrize(
    ("name", "fits"),
    [("acc", True), ("val@1/x.y-z", True), ("", False), ("a b", False), ("x" * 65, False), (3, False), ("/x", False)],
)
def test_a_part_is_named_as_a_metric_can_be(name: Any, fits: bool) -> None:
    assert is_metric_name(name) is fits


@pytest.mark.parametrize(
    ("source", "own", "rule"),
    [
        ("openai/gsm8k", None, "gsm8k"),
        ("gsm8k", None, "gsm8k"),  # verl's own router does not know it, and ends at the first reward
        ("GSM8K", None, "gsm8k"),
        ("lighteval/MATH", None, "math"),
        ("HuggingFaceH4/MATH-500", None, "math"),
        ("aime2024", None, "math"),  # by its beginning
        ("codecontests", None, "code"),
        ("taco", None, "code"),
        ("unknown", None, None),
        ("", None, None),
        # a person's own come first and are exact
        ("mine", {"mine": "exact"}, "exact"),
        ("gsm8k", {"gsm8k": "math"}, "math"),
        ("Mine", {"mine": "exact"}, None),
    ],
)
def test_which_rule_scores_a_data_source(source: str, own: dict[str, str] | None, rule: str | None) -> None:
    assert route(source, own) == rule


def test_every_rule_is_a_choice_of_the_group() -> None:
    assert set(ROUTES.values()) <= set(groups()["reward"])
