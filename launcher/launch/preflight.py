"""What can be known to fail before anything starts."""

from __future__ import annotations

import os
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from launcher.launch.bench_reward import refusals
from launcher.problems import said, shown
from launcher.spec.run import RunSpec, Trainer


def problems(run: RunSpec) -> list[str]:
    """One line for each thing that would fail: files that are not there, folders that cannot be written, a reward
    that nothing can be learnt from.
    """
    found = [*run.data.problems(), *run.model.problems(), *run.reward.problems()]
    try:
        found += _folder(run.trainer)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or the home of nobody
        found.append(f"trainer.run_root: got {shown(run.trainer.run_root)}, {said(error)}; another folder would do")
    if not found and (data := run.data.here(run.algorithm.data)):
        found += of_reward(replace(run, data=data))
    return list(dict.fromkeys(found))


def of_reward(run: RunSpec) -> list[str]:
    """Why nothing could be learnt from the reward, by what it says of the first rows."""
    return refusals(replace(run, reward=deepcopy(run.reward)))  # what it starts to judge ends with the copy


def _folder(trainer: Trainer) -> list[str]:
    """Why the run's folder cannot be made."""
    root = Path(trainer.run_root).expanduser().absolute()
    folder = root / trainer.project_name / (trainer.experiment_name or "")
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.stat()  # raises where the name itself is impossible, which exists() does not
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    if not standing.is_dir():
        return [f"trainer.run_root: {str(standing)!r} is a file; a folder would do"]
    if not os.access(standing, os.W_OK | os.X_OK):
        return [f"trainer.run_root: cannot write to {str(standing)!r}; another folder would do"]
    return []
