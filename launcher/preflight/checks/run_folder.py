"""The folder of a run: where it is, and whether it can be made."""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress
from pathlib import Path

from launcher.core.problems import Problem, error_message, short_repr
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec, Trainer

ROOT = "trainer.run_root"
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control characters, right-to-left marks, half surrogates


def root_of(run: RunSpec) -> Path:
    """The folder of all runs, with `~` expanded where such a user exists."""
    root = Path(run.trainer.run_root)
    with suppress(RuntimeError):
        root = root.expanduser()
    return root


def folder_of(run: RunSpec) -> Path:
    """The run's folder; a name that is still to be chosen ends with N."""
    trainer = run.trainer
    return root_of(run) / trainer.project_name / (trainer.experiment_name or f"{run.label}-N")


def folder_problems(trainer: Trainer) -> list[Problem]:
    """Why the run's folder cannot be made or used."""
    try:
        return _problems(trainer)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or the home of an unknown user
        return [
            Problem(
                ROOT, f"got {short_repr(trainer.run_root)}, {error_message(error)}", "use another folder", "bad-file"
            )
        ]


def _problems(trainer: Trainer) -> list[Problem]:
    if invisible := [letter for letter in trainer.run_root if unicodedata.category(letter) in INVISIBLE]:
        got = f"contains the invisible character {invisible[0]!a}"
        return [Problem(ROOT, got, "use letters, digits and punctuation")]
    folder = Path(trainer.run_root).expanduser().absolute() / trainer.project_name / (trainer.experiment_name or "")
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.stat()  # raises where the name itself is impossible, which exists() does not
    if links := [path for path in (folder.parent, folder) if path.is_symlink()]:
        return [Problem(ROOT, f"{links[0]} is a symbolic link", "use the folder that it leads to", "not-permitted")]
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return [Problem(ROOT, f"{str(existing)!r} is a file", "use a folder", "bad-file")]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [Problem(ROOT, f"cannot write to {str(existing)!r}", "use another folder", "not-permitted")]
    if trainer.experiment_name and Folder(folder).has_results():
        named = Path(trainer.run_root) / trainer.project_name / trainer.experiment_name
        fix = f"use {trainer.experiment_name}-2, or rlrun train --resume {named}"
        return [Problem("trainer.experiment_name", f"{named} already has results", fix, "in-use")]
    return []
