"""Grade-school mathematics (GSM8K, arXiv:2110.14168): a solution ends in `#### 18`, and only that number counts.

The answer is worked out step by step, so a number is compared, never the text around it: `1,000`, `$1000` and
`1000.0` are equal.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

from launcher.core.problems import short_repr
from launcher.core.settings import Share, settings
from launcher.spec.reward import Answer, Reward

# No part can match the same text in two ways, so an answer of a million characters takes one walk.
# A sign is one only where no number or word ends before it: the 3 of `10-3` is not below zero.
_NUMBER = re.compile(r"(?:(?<![\w.)\]])[-+])?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_MARK = "####"
_BESIDE = str.maketrans({",": None, "$": None, "\N{MINUS SIGN}": "-"})


@settings
class GSM8K(Reward):
    """1.0 when the number in the response equals the one in the ground truth."""

    span = 1.0

    method: Literal["strict", "flexible"] = "strict"
    """`strict` takes the number right after the last `####`, `flexible` the last number of the response."""
    format_score: Share = 0.0
    """Score of a wrong number in the right format; a response without a number scores 0."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [self._score(answer) for answer in answers]

    def extract_answer(self, response: str) -> str:
        """The number, however it was come to."""
        given = (_marked if self.method == "strict" else _last)(response)
        return "" if given is None else str(given.normalize())

    def unscorable_reason(self, answer: Answer) -> str:
        if answer.ground_truth is None:
            return "has no ground truth, which reward GSM8K compares with"
        if _true_number(answer.ground_truth) is None:
            truth = short_repr(answer.ground_truth, 40)
            return f"ground truth {truth} is not a number, which reward GSM8K compares with"
        return ""

    def reference_response(self, answer: Answer) -> str | None:
        truth = answer.ground_truth
        return truth if truth is None or _MARK in truth else self.format_response(truth)

    def format_response(self, text: str) -> str:
        return f"{_MARK} {text}"

    def _score(self, answer: Answer) -> float:
        truth = _true_number(answer.ground_truth)
        given = (_marked if self.method == "strict" else _last)(answer.response)
        if truth is None or given is None:
            return 0.0
        return 1.0 if given == truth else self.format_score


def _true_number(text: str | None) -> Decimal | None:
    """Of a whole solution or of a bare number. Nothing is guessed: `1/2` is no number here."""
    if text is None:
        return None
    if _MARK in text:
        return _marked(text)
    found = _NUMBER.fullmatch(text.translate(_BESIDE).strip().removesuffix("."))
    return Decimal(found[0]) if found else None


def _marked(text: str) -> Decimal | None:
    """The number right after the last `####`."""
    _, mark, tail = text.rpartition(_MARK)
    found = _NUMBER.match(tail.translate(_BESIDE).lstrip()) if mark else None
    return Decimal(found[0]) if found else None


def _last(text: str) -> Decimal | None:
    """The last number of the text."""
    found = deque(_NUMBER.finditer(text.translate(_BESIDE)), maxlen=1)
    return Decimal(found[0][0]) if found else None
