"""Interface of the parts of a run that read a user's files: model, data, reward and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from launcher.core.problems import Problem


class Part:
    """Base of `Model`, `Dataset`, `Reward` and `Environment`; each method may be overridden."""

    def problems(self) -> list[Problem]:
        """Errors that can be found before anything is loaded."""
        return []

    def missing_requirements(self) -> list[Problem]:
        """Requirements that are missing on this machine at this moment, such as a server."""
        return []

    def with_absolute_paths(self) -> Self:
        """The same part with absolute paths, valid in any working folder."""
        return self

    def within(self, folder: Path) -> Self:
        """The same part with the paths of its copies in a run's folder made absolute."""
        return self
