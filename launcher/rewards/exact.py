"""Exact match with the ground truth."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.core.settings import settings
from launcher.spec.reward import Answer, Reward


@settings
class Exact(Reward):
    """1.0 when the response equals its ground truth, otherwise, and without a ground truth, 0.0."""

    span = 1.0

    strip: bool = True
    """Ignore white space around either text."""
    ignore_case: bool = False
    """Ignore case: `Paris` equals `paris`."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return [float(not self.unscorable_reason(answer)
                      and self._normalize(answer.response) == self._normalize(answer.ground_truth or ""))
                for answer in answers]  # fmt: skip

    def unscorable_reason(self, answer: Answer) -> str:
        is_blank = not self._normalize(answer.ground_truth or "")  # an empty answer would be right
        return "has no ground truth, which reward Exact compares with" if is_blank else ""

    def reference_response(self, answer: Answer) -> str | None:
        return answer.ground_truth

    def extract_answer(self, response: str) -> str:
        return self._normalize(response)

    def _normalize(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
