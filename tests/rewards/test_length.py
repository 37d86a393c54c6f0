"""Length rewards, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from launcher.rewards.length import Length
from launcher.spec.reward import Answer


@pytest.mark.parametrize(
    ("length", "score"),
    [(0, 0.0), (5, 0.5), (10, 1.0), (20, 1.0), (25, 0.5), (1000, 0.0)],
)
def test_a_range(length: int, score: float) -> None:
    assert Length(low=10, high=20, margin=10).score([Answer("x" * length)]) == [pytest.approx(score)]


def test_words_are_counted_where_that_is_asked() -> None:
    assert Length(high=2, margin=1, unit="words").score([Answer("a  bc\n"), Answer("a b c")]) == [1.0, 0.0]


@pytest.mark.parametrize("values", [{"low": 5, "high": 4}, {}, {"high": 0}])
def test_what_cannot_be_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Length(**values)
