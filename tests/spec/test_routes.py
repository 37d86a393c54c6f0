"""Which rule scores which data source."""

from __future__ import annotations

import pytest

from launcher.config.compose import groups
from launcher.spec.routes import ROUTES, route


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("gsm8k", "gsm8k"),  # verl's own router does not know it, and ends at the first reward
        ("GSM8K", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("aime2024", "math"),  # by its beginning
        ("codecontests", "code"),
        ("taco", "code"),
        ("unknown", None),
        ("", None),
    ],
)
def test_the_table(source: str, rule: str | None) -> None:
    assert route(source) == rule


def test_a_persons_own_routes_come_first_and_are_exact() -> None:
    assert route("mine", {"mine": "exact"}) == "exact"
    assert route("gsm8k", {"gsm8k": "math"}) == "math"
    assert route("Mine", {"mine": "exact"}) is None


def test_every_rule_is_a_choice_of_the_group() -> None:
    assert set(ROUTES.values()) <= set(groups()["reward"])
