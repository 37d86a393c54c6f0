"""A reward model: a network that was trained to say how good an answer is. The engine loads it and asks it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from launcher.problems import shown
from launcher.settings import AtLeastOne, settings
from launcher.spec.reward import Answer, Reward

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@settings
class RewardModel(Reward):
    """A sequence classifier with one output (`AutoModelForSequenceClassification`): its logit is the score."""

    path: str
    """Hugging Face id, or a folder with a config.json."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    batch_size: AtLeastOne = 16
    """Answers scored at a time; it changes memory and speed only."""
    max_length: AtLeastOne | None = None
    """Tokens of prompt and answer; of a longer one the beginning is cut. By default the model's positions."""

    def problems(self) -> list[str]:
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            if (folder / "config.json").is_file():
                return []
            return [f"reward.path: {shown(self.path)} holds no config.json; a model's folder would do"]
        if _HUB_ID.fullmatch(self.path) and not folder.parent.is_dir():
            return []
        return [f"reward.path: no folder {shown(self.path)}; a model's folder or hub id would do"]

    def rooted(self) -> Self:
        folder = Path(self.path).expanduser()
        return replace(self, path=str(folder.resolve())) if folder.is_dir() else self

    def score(self, answers: Sequence[Answer]) -> list[float]:
        raise NotImplementedError("a reward model needs an engine that computes networks; engine=torch would do")
