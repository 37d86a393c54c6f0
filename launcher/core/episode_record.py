"""An episode with an environment, for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import WithJsonSchema

Number = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})]
"""A number of a run, which JSON has as a text where it is not finite."""


@dataclass(frozen=True)
class CalledTool:
    """A tool call in an episode; `arguments` are JSON."""

    name: str
    arguments: str
    seconds: Number
    error: str = ""


@dataclass(frozen=True)
class EpisodeTurn:
    """A turn of the policy, and the environment's observation after it; long texts are cut."""

    text: str
    observation: str = ""
    reward: Number = 0.0
    advantage: Number | None = None
    calls: tuple[CalledTool, ...] = ()


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode for display: why it ended, and its turns. `fault` says why it has no score."""

    outcome: str
    turns: tuple[EpisodeTurn, ...]
    fault: str = ""
