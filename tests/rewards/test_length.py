"""Length rewards, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from launcher.algorithms.dapo import DAPO
from launcher.rewards.length import Length, Overlong
from launcher.spec.algorithm import Batch
from launcher.spec.reward import Answer


@pytest.mark.parametrize(
    ("length", "score"),
    [(0, 0.0), (5, 0.5), (10, 1.0), (15, 1.0), (20, 1.0), (25, 0.5), (30, 0.0), (1000, 0.0)],
)
def test_a_range(length: int, score: float) -> None:
    assert Length(low=10, high=20, margin=10).score([Answer("x" * length)]) == [pytest.approx(score)]


def test_words_are_counted_where_that_is_asked() -> None:
    assert Length(high=2, margin=1, unit="words").score([Answer("a  bc\n"), Answer("a b c")]) == [1.0, 0.0]


@pytest.mark.parametrize("length", [0, 3, 6, 7, 8, 9, 10, 14])
def test_overlong_is_dapos_price(length: int) -> None:
    """Eq. 13, which the algorithm takes off in tokens: here a character stands for one."""
    mask = torch.ones(1, length, dtype=torch.float64)
    batch = Batch(torch.zeros(1, length), torch.tensor([length]), mask, reward=torch.zeros(1, dtype=torch.float64))
    price = DAPO(max_response_length=10, overlong_buffer_len=4).shape_reward(batch).item()
    assert Overlong(longest=10, buffer=4).score([Answer("x" * length)]) == [pytest.approx(price)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [(Length, {"low": 5, "high": 4}), (Length, {}), (Overlong, {"longest": 3, "buffer": 4}), (Length, {"high": 0})],
)
def test_what_cannot_be_is_refused(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind(**values)
