"""Runs that were started: `runs.find("ada")`, `runs.every()`; what each has written is read as tables."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.runs.recorded import RecordedRun, every, find

__all__ = ["RecordedRun", "every", "find"]


def __getattr__(name: str) -> Any:  # late: each module of this package would load all of it
    from importlib import import_module  # noqa: PLC0415

    if name not in __all__:
        raise AttributeError(f"module 'launcher.runs' has no attribute {name!r}")
    return getattr(import_module("launcher.runs.recorded"), name)
