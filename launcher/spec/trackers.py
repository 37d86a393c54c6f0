"""The trackers that `trainer.logger` may name, and the package that each of them needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from launcher.core.problems import Problem, suggest

CONSOLE = "console"
"""verl's name for the printed lines, which are always on; it starts no tracker."""
LOGGER = "trainer.logger"


TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "swanlab", "file")
"""In the order in which they are listed. Each imports the package of its name, but for `file`, which needs none."""


def install_hint(tracker: str) -> str:
    """How to install the package of a tracker; empty where nothing is missing."""
    is_there = tracker == "file" or find_spec(tracker) is not None
    return "" if is_there else f"run pip install {tracker}, or pip install 'rlrun[trackers]'"


def trackers_of(loggers: Sequence[str]) -> list[str]:
    """The trackers among the names of `trainer.logger`, each once."""
    return [name for name in dict.fromkeys(loggers) if name != CONSOLE]


def unknown_trackers(loggers: Sequence[str], where: str = LOGGER) -> list[Problem]:
    """A problem for each name that is no tracker."""
    known = (CONSOLE, *TRACKERS) if where == LOGGER else TRACKERS
    return [
        Problem(where, f"got {name!r}, which is not a tracker", suggest(name, known), "unknown-choice")
        for name in dict.fromkeys(loggers)
        if name not in known
    ]
