"""What a run is asked for: words, and where each stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["command line", "recipe", "run"]


@dataclass(frozen=True)
class SourcedOverride:
    """A word, and where it stands."""

    text: str
    where: str
    """`command line: sampler.n=8`, or file and line."""
    source: Source = "command line"

    @property
    def key(self) -> str:
        """What it sets, without `+` and `~`."""
        return self.text.partition("=")[0].lstrip("+~")

    @property
    def value(self) -> str:
        """As it was typed; empty where there is none."""
        return self.text.partition("=")[2]


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked for."""

    overrides: list[SourcedOverride]
    config_dir: Path | None = None
    notes: tuple[str, ...] = ()
    """What only a running shell knows, and what stands for it here."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.overrides]
