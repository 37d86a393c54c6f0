"""Rules against verl 0.9.1's scorers: the same verdict wherever both mean the same."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("verl")
from verl.utils.reward_score import gsm8k, math_reward

from launcher.rewards.gsm8k import GSM8K
from launcher.rewards.math import boxed
from launcher.spec.reward import Answer

NUMBERS = ["18", "-3", "1000", "1,000", "3.5", "0", "7"]
TAILS = ["", ".", " dollars", "\nDone."]


def responses(count: int) -> list[tuple[str, str]]:
    draw = random.Random(0)
    found = []
    for _ in range(count):
        marks = [
            f"{draw.choice(['so', 'I think', '9 * 2'])}\n#### {draw.choice(NUMBERS)}" for _ in range(draw.randint(0, 2))
        ]
        found.append(("\n".join(marks) + draw.choice(TAILS), draw.choice(["18", "-3", "1000", "7"])))
    return found


def test_gsm8k_says_what_verl_says() -> None:
    rewards = {score for response, truth in responses(500)
               for score in [(GSM8K().score([Answer(response, truth)])[0], float(gsm8k.compute_score(response, truth)))]
               if not response.endswith(".")}  # fmt: skip
    assert rewards == {(0.0, 0.0), (1.0, 1.0)}


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{1}",
        r"so \boxed{\frac{1}{2}} and",
        r"\boxed{1} then \boxed{x^{2}}",
        r"\fbox{4}",
        "none",
        r"\boxed{1} \boxed{2",
    ],
)
def test_the_last_box_is_verls(response: str) -> None:
    text = math_reward.last_boxed_only_string(response)
    theirs = None if text is None else text[text.index("{") + 1 : -1]
    assert boxed(response) == theirs
