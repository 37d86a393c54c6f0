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
        ({}, "bacd", None, 0.0),  # nobody said what is right
        ({}, "", None, 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"ignore_case": True}, "STRASSE", "straße", 1.0),  # more than lower case
        ({"strip": False}, "bacd ", "bacd", 0.0),
    ],
)
def test_exact(values: dict[str, Any], response: str, truth: str | None, score: float) -> None:
    assert Exact(**values).score([Answer(response, truth)]) == [score]


def test_case_and_blanks_count_where_they_do_for_the_score() -> None:
    assert Exact(ignore_case=True).extract_answer(" Paris\n") == Exact(ignore_case=True).extract_answer("paris")
    assert Exact().extract_answer("Paris") != Exact().extract_answer("paris")
