"""The trackers that `trainer.logger` may name, and the library that each of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from launcher.core.problems import Problem, suggest

CONSOLE = "console"
"""verl's name for the printed lines, which are always on; it starts no tracker."""
LOGGER = "trainer.logger"


@dataclass(frozen=True)
class TrackerLibrary:
    """The package that a tracker imports, with the same name in pip; empty where none is needed."""

    package: str = ""

    @property
    def installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None

    @property
    def fix(self) -> str:
        """How to install it."""
        return f"run pip install {self.package}, or pip install 'rlrun[trackers]'"


TRACKERS: Mapping[str, TrackerLibrary] = MappingProxyType(
    {name: TrackerLibrary(name) for name in ("tensorboard", "wandb", "trackio", "mlflow", "swanlab")}
    | {"file": TrackerLibrary()}
)
"""Tracker -> its library, in the order in which trackers are listed."""


def trackers_of(loggers: Sequence[str]) -> list[str]:
    """The trackers among the names of `trainer.logger`, each once."""
    return [name for name in dict.fromkeys(loggers) if name != CONSOLE]


def unknown_trackers(loggers: Sequence[str], where: str = LOGGER) -> list[Problem]:
    """A problem for each name that is no tracker."""
    known = (CONSOLE, *TRACKERS) if where == LOGGER else tuple(TRACKERS)
    return [
        Problem(where, f"got {name!r}, which is not a tracker", suggest(name, known), "unknown-choice")
        for name in dict.fromkeys(loggers)
        if name not in known
    ]
