"""Which rule scores which data source."""

from __future__ import annotations

import pytest

from launcher.config.compose import groups
from launcher.spec.routes import ROUTES, route


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
def test_the_table(source: str, own: dict[str, str] | None, rule: str | None) -> None:
    assert route(source, own) == rule


def test_every_rule_is_a_choice_of_the_group() -> None:
    assert set(ROUTES.values()) <= set(groups()["reward"])
