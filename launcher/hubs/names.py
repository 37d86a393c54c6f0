"""Which names a hub may give to files here: whatever a listing says, nothing is written outside the folder."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from launcher.core.problems import Problem, short_repr

OURS = ".rlrun"
"""The folder inside a downloaded folder that holds lock, manifest and unfinished files."""

_RESERVED = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?|.*[ .]| .*", re.IGNORECASE
)  # names of devices, and ends and beginnings that are cut
_MAX_PART_BYTES, _MAX_BYTES = 255, 1024
_FIX = "ask the owner of the repository to rename the file"


def check_names(paths: Iterable[str]) -> list[Problem]:
    """One problem for each path that must not be used, and for those that would be one file on some systems."""
    found, folded = [], dict[str, str]()
    for path in paths:
        if reason := _refusal(path):
            found.append(Problem(short_repr(path), reason, _FIX, "not-supported"))
            continue
        key = unicodedata.normalize("NFC", path).casefold()
        if key in folded:
            same = f"is the same file as {short_repr(folded[key])} where case does not count"
            found.append(Problem(short_repr(path), same, _FIX, "not-supported"))
        folded[key] = path
    return found


def _refusal(path: str) -> str:
    """Why `path` must not be used; empty when it may."""
    if any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for letter in path):
        return "contains an invisible character"
    if "\\" in path or re.match(r"[A-Za-z]:", path):
        return "is a path on some systems"
    parts = path.split("/")
    if not all(parts):
        return "is empty or absolute, or has an empty part"
    if {".", ".."} & {*parts}:
        return "leads out of its folder, or has a part ."
    if max(len(part.encode()) for part in parts) > _MAX_PART_BYTES or len(path.encode()) > _MAX_BYTES:
        return "is too long"
    if any(map(_RESERVED.fullmatch, parts)):
        return "has a part that is reserved or cut on some systems"
    if parts[0].casefold() == OURS:
        return "is a name that rlrun uses itself"
    return ""


def path_inside(folder: Path, path: str) -> Path:
    """Where the file `path` lies in `folder`. Raises `ValueError` when a link on the way leads outside."""
    root = folder.resolve()
    target = root / path
    if not target.parent.resolve().is_relative_to(root):
        raise ValueError(f"a link in {str(folder)!r} leads outside of it, to {str(target.parent.resolve())!r}")
    return target
