"""Rewards for the length of a response, as its reader sees it: in characters or words.

The cost of an answer is counted in tokens: for that, `algorithm=dapo` has a penalty (overlong_buffer_len), which the
engine subtracts after filtering groups. Use these where the length of the text matters, with any algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from launcher.core.settings import AtLeastOne, Count, settings
from launcher.spec.reward import Answer, Reward

Unit = Literal["characters", "words"]


def length(text: str, unit: Unit) -> int:
    return len(text) if unit == "characters" else len(text.split())


@settings
class Length(Reward):
    """1.0 between `low` and `high`; decreases linearly to 0.0 outside."""

    uses_ground_truth = False
    span = 1.0

    low: Count = 0
    """Smallest length that scores 1.0."""
    high: AtLeastOne
    """Largest length that scores 1.0; equal to `low` it is a target."""
    margin: AtLeastOne = 100
    """Distance from that range at which the score reaches 0.0."""
    unit: Unit = "characters"
    """Unit of the lengths."""

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError(f"high is {self.high} and low {self.low}; expected high >= low")

    def score(self, answers: Sequence[Answer]) -> list[float]:
        lengths = [length(answer.response, self.unit) for answer in answers]
        outside = [max(self.low - size, size - self.high, 0) for size in lengths]
        return [max(1.0 - distance / self.margin, 0.0) for distance in outside]


@settings
class Overlong(Reward):
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13): 0.0, and down to -1.0 where a response is too
    long."""

    uses_ground_truth = False
    span = 1.0

    longest: AtLeastOne
    """Length from which the score is -1.0."""
    buffer: AtLeastOne
    """Length before `longest` over which the score decreases from 0.0."""
    unit: Unit = "characters"
    """Unit of the lengths."""

    def __post_init__(self) -> None:
        if self.buffer > self.longest:
            raise ValueError(f"buffer is {self.buffer} of {self.longest}; expected at most {self.longest}")

    def score(self, answers: Sequence[Answer]) -> list[float]:
        lengths, free_length = [length(answer.response, self.unit) for answer in answers], self.longest - self.buffer
        return [-min(max((size - free_length) / self.buffer, 0.0), 1.0) for size in lengths]
