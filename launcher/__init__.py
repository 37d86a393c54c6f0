"""rlrun: one command starts, watches and explains a post-training run.

    from launcher import plan, runs, train

`plan` and `train` take the arguments of the command line; `runs.find` and `runs.every` read what runs have written.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers read it; `typing` takes longer to load than the first line may
if TYPE_CHECKING:
    from typing import Any

    from launcher import runs
    from launcher.api import RunFailed, plan, resume, train
    from launcher.core.problems import Problems

__version__ = "0.1.0"
__all__ = ["Problems", "RunFailed", "plan", "resume", "runs", "train"]


def __getattr__(name: str) -> Any:  # late: the command line needs none of it to start
    from importlib import import_module  # noqa: PLC0415

    if name not in __all__:
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    if name == "runs":
        return import_module("launcher.runs")
    return getattr(import_module("launcher.core.problems" if name == "Problems" else "launcher.api"), name)
