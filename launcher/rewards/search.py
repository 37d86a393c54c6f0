"""Short answers to questions (Search-R1, arXiv:2503.09516): the last <answer> has to equal one of the right answers in
the ground truth, such as {"target": ["Paris", "City of Paris"]}, a list, or a text."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from launcher.core.settings import settings
from launcher.spec.reward import Answer, Reward

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
MOST_TAGS = 10  # a right answer with more tags scores 0.25


@settings
class Search(Reward):
    """1.0 when the last `<answer>` equals a right answer, without case, punctuation and articles; otherwise 0.0."""

    span = 1.0

    def score(self, answers: Sequence[Answer]) -> list[float]:
        scores = []
        for answer in answers:
            right, extracted = {*map(_normalize, _targets(answer))} - {""}, self.extract_answer(answer.response)
            most = 0.25 if answer.response.count("answer>") > 2 * MOST_TAGS else 1.0
            scores.append(most if extracted in right else 0.0)
        return scores

    def unscorable_reason(self, answer: Answer) -> str:
        return "" if _targets(answer) else "has no ground truth with a target, which reward Search compares with"

    def reference_response(self, answer: Answer) -> str | None:
        targets = _targets(answer)
        return self.format_response(targets[0]) if targets else None

    def format_response(self, text: str) -> str:
        return f"<answer> {text} </answer>"

    def extract_answer(self, response: str) -> str:
        matches = _ANSWER.findall(response)
        return _normalize(matches[-1]) if matches else ""


def _targets(answer: Answer) -> list[str]:
    """The right answers of the ground truth, as texts."""
    truth: Any = answer.ground_truth if answer.typed_truth is None else answer.typed_truth
    truth = truth.get("target") if isinstance(truth, dict) else truth
    targets = truth if isinstance(truth, list) else [truth]
    return [str(text) for text in targets if isinstance(text, str | int | float) and str(text).strip()]


def _normalize(text: str) -> str:
    """`text` in lower case, without punctuation, articles and repeated blanks, as in SQuAD's evaluation."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())
