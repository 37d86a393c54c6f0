"""Grade-school mathematics (GSM8K, arXiv:2110.14168): a solution ends in `#### 18`, and only that number counts.

Numbers are compared, and never the text around them, which derives the answer: `1,000`, `$1000` and `1000.0` are
equal.
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

# The pattern is unambiguous, so it does not backtrack: matching takes linear time.
# A sign counts only where no number or word ends before it: the 3 of `10-3` is not negative.
_NUMBER = re.compile(r"(?:(?<![\w.)\]])[-+])?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_MARK = "####"
_CLEANED = str.maketrans({",": None, "$": None, "\N{MINUS SIGN}": "-"})


@settings
class GSM8K(Reward):
    """1.0 when the number in the response equals the one in the ground truth."""

    span = 1.0

    method: Literal["strict", "flexible"] = "strict"
    """`strict` takes the number right after the last `####`, `flexible` the last number of the response."""
    format_score: Share = 0.0
    """Score of a wrong number in the right format; a response without a number scores 0."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [self._score(_truth_number(answer.ground_truth), self._number(answer.response)) for answer in answers]

    def extract_answer(self, response: str) -> str:
        """The number of a response in normal form, so that equal numbers give equal texts; "" without one."""
        number = self._number(response)
        return "" if number is None else str(number.normalize())

    def unscorable_reason(self, answer: Answer) -> str:
        if answer.ground_truth is None:
            return "has no ground truth, which reward GSM8K compares with"
        if _truth_number(answer.ground_truth) is None:
            truth = short_repr(answer.ground_truth, 40)
            return f"ground truth {truth} is not a number, which reward GSM8K compares with"
        return ""

    def reference_response(self, answer: Answer) -> str | None:
        truth = answer.ground_truth
        return truth if truth is None or _MARK in truth else self.format_response(truth)

    def format_response(self, text: str) -> str:
        return f"{_MARK} {text}"

    def _number(self, response: str) -> Decimal | None:
        return _marked_number(response) if self.method == "strict" else _last_number(response)

    def _score(self, truth: Decimal | None, number: Decimal | None) -> float:
        if truth is None or number is None:
            return 0.0
        return 1.0 if number == truth else self.format_score


def _truth_number(text: str | None) -> Decimal | None:
    """The number of a ground truth: of a solution, or bare. None for anything else, such as `1/2`."""
    if text is None:
        return None
    if _MARK in text:
        return _marked_number(text)
    match = _NUMBER.fullmatch(text.translate(_CLEANED).strip().removesuffix("."))
    return Decimal(match[0]) if match else None


def _marked_number(text: str) -> Decimal | None:
    """The number right after the last `####`."""
    _, mark, tail = text.rpartition(_MARK)
    match = _NUMBER.match(tail.translate(_CLEANED).lstrip()) if mark else None
    return Decimal(match[0]) if match else None


def _last_number(text: str) -> Decimal | None:
    """The last number of the text."""
    matches = deque(_NUMBER.finditer(text.translate(_CLEANED)), maxlen=1)
    return Decimal(matches[0][0]) if matches else None
