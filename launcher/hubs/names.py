"""Which names a hub may give to files here: whatever a listing says, nothing is written outside the folder."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from launcher.core.problems import short_repr

OURS = ".rlrun"
"""The folder inside a downloaded folder that holds what is ours: lock, manifest, unfinished files."""

_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE)
_LONGEST_PART, _LONGEST = 255, 1024  # bytes


def faults(paths: Iterable[str]) -> list[str]:
    """One line for each path that must not be used, and for those that would be one file on some systems."""
    found, folded = [], dict[str, str]()
    for path in paths:
        if fault := _fault(path):
            found.append(f"{short_repr(path)}: {fault}; the repository would have to name the file otherwise")
            continue
        key = unicodedata.normalize("NFC", path).casefold()
        if key in folded:
            found.append(
                f"{short_repr(path)}: is one file with {short_repr(folded[key])} where case does not count;"
                " the repository would have to name them otherwise"
            )
        folded[key] = path
    return found


def _fault(path: str) -> str:
    """Why `path` must not be used; empty when it may."""
    if any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for letter in path):
        return "holds a character that cannot be seen"
    if "\\" in path or re.match(r"[A-Za-z]:", path):
        return "is a path on some systems"
    parts = path.split("/")
    if not all(parts):
        return "is empty or absolute, or has an empty part"
    if any(part in (".", "..") for part in parts):
        return "leads out of its folder or stays where it is"
    if any(len(part.encode()) > _LONGEST_PART for part in parts) or len(path.encode()) > _LONGEST:
        return "is too long"
    if any(_RESERVED.fullmatch(part) or part[-1] in " ." or part[0] == " " for part in parts):
        return "has a part that is reserved or cut on some systems"
    if parts[0].casefold() == OURS:
        return "is a name that only rlrun itself uses"
    return ""


def inside(folder: Path, path: str) -> Path:
    """Where the file `path` lies in `folder`. `ValueError` when a link on the way leads outside."""
    root = folder.resolve()
    target = root / path
    if not target.parent.resolve().is_relative_to(root):
        raise ValueError(f"a link in {str(folder)!r} leads outside of it, to {str(target.parent.resolve())!r}")
    return target
