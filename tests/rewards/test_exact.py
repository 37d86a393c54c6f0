"""Exact match."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.rewards.exact import Exact
from launcher.spec.reward import Answer


@pytest.mark.parametrize(
    ("values", "response", "truth", "score"),
    [
        ({}, "bacd", "bacd", 1.0),
        ({}, "bacd ", "\nbacd", 1.0),  # blanks around it
        ({}, "ba cd", "bacd", 0.0),  # a blank inside counts
        ({}, "dcab", "bacd", 0.0),
        ({}, "", "bacd", 0.0),
        ({}, "bacd", None, 0.0),  # nobody said what is right
        ({}, "", None, 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"ignore_case": True}, "PARIS", "paris", 1.0),
        ({"ignore_case": True}, "STRASSE", "straße", 1.0),  # more than lower case
        ({"strip": False}, "bacd ", "bacd", 0.0),
        ({"strip": False}, "bacd", "bacd", 1.0),
    ],
)
def test_exact(values: dict[str, Any], response: str, truth: str | None, score: float) -> None:
    assert Exact(**values).score([Answer(response, truth)]) == [score]


def test_one_score_for_each_answer_in_order() -> None:
    answers = [Answer("a", "a"), Answer("b", "a"), Answer("a", "a")]
    assert Exact().score(answers) == [1.0, 0.0, 1.0]
    assert Exact().score([]) == []
