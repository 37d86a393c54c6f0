"""The trackers that `trainer.logger` may name, and the library that each of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from launcher.core.problems import Problem, suggest

CONSOLE = "console"
"""verl's name for the lines that are always printed; it starts nothing."""
LOGGER = "trainer.logger"


@dataclass(frozen=True)
class TrackerLibrary:
    """What a tracker imports, and the package that pip installs for it; both empty where nothing is needed."""

    module: str = ""
    package: str = ""

    @property
    def installed(self) -> bool:
        return not self.module or find_spec(self.module) is not None

    @property
    def fix(self) -> str:
        """How to install it."""
        return f"run pip install {self.package}, or pip install 'rlrun[trackers]'"


TRACKERS: Mapping[str, TrackerLibrary] = MappingProxyType({
    "tensorboard": TrackerLibrary("tensorboard", "tensorboard"),
    "wandb": TrackerLibrary("wandb", "wandb"),
    "trackio": TrackerLibrary("trackio", "trackio"),
    "mlflow": TrackerLibrary("mlflow", "mlflow"),
    "swanlab": TrackerLibrary("swanlab", "swanlab"),
    "prometheus": TrackerLibrary(),
    "file": TrackerLibrary(),
})  # fmt: skip
"""In the order in which they are listed."""


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
