"""A trained reward model: settings only; the engine loads the network and computes its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from launcher.core.problems import Problem
from launcher.core.settings import AtLeastOne, settings
from launcher.hubs.choice import FromHub
from launcher.spec.reward import Answer, Reward


@settings
class RewardModel(FromHub, Reward):
    """A sequence classifier with one output (`AutoModelForSequenceClassification`): its logit is the score."""

    learned = True
    cheap = False

    path: str
    """Hub id, or a folder with a config.json."""
    batch_size: AtLeastOne = 16
    """Answers scored at a time; it changes memory and speed only."""
    max_length: AtLeastOne | None = None
    """Maximum tokens of prompt and answer; longer ones are cut at the beginning. By default the model's positions."""

    def problems(self) -> list[Problem]:
        return self.path_problems("reward.path", lambda folder: (folder / "config.json").is_file())

    def with_absolute_paths(self) -> Self:
        folder = Path(self.path).expanduser()
        return replace(self, path=str(folder.resolve())) if folder.is_dir() else self

    def score(self, answers: Sequence[Answer]) -> list[float]:
        raise NotImplementedError("a reward model needs an engine that computes networks; use engine=torch")
