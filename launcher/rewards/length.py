"""The length of a response, as its reader sees it: in characters or words.

The cost of an answer is counted in tokens: for that, `algorithm=dapo` has a penalty (overlong_buffer_len), which the
engine subtracts after filtering groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from launcher.core.settings import AtLeastOne, Count, settings
from launcher.spec.reward import Answer, Reward


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
    unit: Literal["characters", "words"] = "characters"
    """Unit of the lengths."""

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError(f"high is {self.high} and low {self.low}; expected high >= low")

    def score(self, answers: Sequence[Answer]) -> list[float]:
        lengths = [len(answer.response if self.unit == "characters" else answer.response.split()) for answer in answers]
        outside = [max(self.low - size, size - self.high, 0) for size in lengths]
        return [max(1.0 - distance / self.margin, 0.0) for distance in outside]
