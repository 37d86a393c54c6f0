"""A request for a run: its arguments, each with the place where it is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.core.problems import shortened

Source = Literal["command line", "recipe", "run"]


@dataclass(frozen=True)
class SourcedOverride:
    """An argument, and where it is written."""

    text: str
    where: str
    """`command line: sampler.n=8`, or file and line."""
    source: Source = "command line"
    dashes: str = ""
    """The dashes of an option, as in `--key value`, whose `text` is then `key=value`; else empty."""

    @property
    def key(self) -> str:
        """The setting or group that it sets, without `+` and `~`."""
        return self.text.partition("=")[0].lstrip("+~")

    @property
    def value(self) -> str:
        """The value as it was typed; empty where there is none."""
        return self.text.partition("=")[2]

    @property
    def shown(self) -> str:
        """The key as it was typed, cut where it is long."""
        return shortened(f"{self.dashes}{self.key}")

    @property
    def plain(self) -> str:
        """The key with `_` for `-`."""
        return self.key.replace("-", "_")


@dataclass(frozen=True)
class RunRequest:
    """The arguments and the config folder of a run to resolve."""

    overrides: list[SourcedOverride]
    config_dir: Path | None = None
    notes: tuple[str, ...] = ()
    """Values that only a running shell knows, and what stands for them here."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.overrides]
