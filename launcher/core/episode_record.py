"""An episode with an environment, for display."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CalledTool:
    """A tool call in an episode; `arguments` are JSON."""

    name: str
    arguments: str
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class EpisodeTurn:
    """A turn of the policy, and the environment's observation after it; long texts are cut."""

    text: str
    observation: str = ""
    reward: float = 0.0
    advantage: float | None = None
    calls: tuple[CalledTool, ...] = ()


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode for display: why it ended, and its turns. `fault` says why it has no score."""

    outcome: str
    turns: tuple[EpisodeTurn, ...]
    fault: str = ""
