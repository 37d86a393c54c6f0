"""Checks the file names of a hub's listing, so that nothing is ever written outside the folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from launcher.core.problems import Problem, path_repr

OURS = ".rlrun"
"""The folder inside a downloaded folder that holds lock, manifest and unfinished files."""

_MAX_PART_BYTES, _MAX_BYTES = 255, 1024


def check_names(paths: Iterable[str]) -> list[Problem]:
    """One problem for each path that must not be used."""
    fix = "ask the owner of the repository to rename the file"
    return [Problem(path_repr(path), why, fix, "not-supported") for path in paths if (why := _refusal(path))]


def _refusal(path: str) -> str:
    """Why `path` must not be used; empty when it may."""
    if not path.isprintable():
        return "contains an invisible character"
    parts = path.split("/")
    if not all(parts):
        return "is empty or absolute, or has an empty part"
    if {".", ".."} & {*parts} or "\\" in path:
        return "leads out of its folder, or has a part . or a backslash"
    if max(len(part.encode()) for part in parts) > _MAX_PART_BYTES or len(path.encode()) > _MAX_BYTES:
        return "is too long"
    if parts[0].casefold() == OURS:
        return "is a name that rlrun uses itself"
    return ""


def path_inside(folder: Path, path: str) -> Path:
    """The absolute path of the file `path` in `folder`. Raises `ValueError` when a link on the way leads outside."""
    root = folder.resolve()
    target = root / path
    if not target.parent.resolve().is_relative_to(root):
        raise ValueError(f"a link in {str(folder)!r} leads outside of it, to {str(target.parent.resolve())!r}")
    return target
