"""Runs that were started: `runs.find("ada")`, `runs.every()`; what each has written is read as tables."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.runs.recorded import RecordedRun, every, find

__all__ = ["RecordedRun", "every", "find"]


def __getattr__(name: str) -> Any:  # late: each module of this package would load all of it
    if name not in __all__:
        raise AttributeError(f"module 'launcher.runs' has no attribute {name!r}")
    return getattr(import_module("launcher.runs.recorded"), name)
