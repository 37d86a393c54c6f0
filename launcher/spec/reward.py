"""What a reward is: it scores finished answers. It knows nothing of tokens or training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """One finished answer and what is known of its prompt."""

    response: str
    ground_truth: str | None = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | tuple[tuple[str, str], ...] = ""
    """What was asked: text, or (role, content) of each turn."""


class Reward(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/reward/<name>.yaml."""

    @abstractmethod
    def score(self, answers: Sequence[Answer]) -> list[float]:
        """One finite number for each answer, higher is better; the order is kept."""

    def problems(self) -> list[str]:
        """What can be seen to be wrong before anything is loaded: one line each."""
        return []

    def rooted(self) -> Self:
        """The same reward, found from any working folder."""
        return self

    def said(self, response: str) -> str:
        """What a response comes to: answers that say the same are one when the majority is asked."""
        return response.strip()
