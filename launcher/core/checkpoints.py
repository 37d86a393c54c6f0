"""A checkpoint is a folder whose manifest verifies; anything else is none.

    checkpoints/step_000020/  trainer.json  manifest.json, and what the engine writes

It is filled under a temporary name, synced, and renamed, and the manifest (sha256 of every file) is written
last. So a kill leaves either the whole checkpoint or none, and a byte that changed later is found.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.files import fsync_path, open_file, read_file
from launcher.core.problems import Problem

MANIFEST = "manifest.json"
_NAME = re.compile(r"step_[0-9]{6,}")
_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


def name_of(step: int) -> str:
    return f"step_{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


Files = Mapping[str, Mapping[str, int | str]]
"""A part of a manifest: bytes and sha256 of files, by their paths in the checkpoint."""


def write(root: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write the files, then make them a checkpoint. On any error nothing of it remains."""
    draft = begin(root, step)
    try:
        fill(draft)
        return complete(root, step, [seal(draft, _files(draft))])
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def begin(root: Path, step: int) -> Path:
    """The empty folder that the writers of a checkpoint fill. One of them calls it, before the others write.

    Each then writes files of its own and seals them; the one that began joins the parts (`complete`), after which
    readers see the checkpoint. Until then there is none: what a kill leaves is removed with the next one.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    tidy(root)
    draft = root / f"{_UNFINISHED}{name_of(step)}"
    draft.mkdir(mode=0o700)
    return draft


def seal(draft: Path, written: Iterable[Path]) -> Files:
    """Make a writer's files durable: its part of the manifest."""
    part: dict[str, dict[str, int | str]] = {}
    for path in written:
        os.chmod(path, 0o600)
        fsync_path(path)
        part[path.relative_to(draft).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return part


def complete(root: Path, step: int, parts: Sequence[Files]) -> Path:
    """Make the folder of `begin` a checkpoint, whose manifest is made of the parts of all writers.

    Raises `ValueError` where two writers sealed one file, or none did: then there is no checkpoint.
    """
    draft, final = root / f"{_UNFINISHED}{name_of(step)}", root / name_of(step)
    files = {name: of for part in parts for name, of in part.items()}
    present = {path.relative_to(draft).as_posix() for path in _files(draft)}
    if twice := sum(map(len, parts)) - len(files):
        raise ValueError(f"{final.name}: {twice} files are in the parts of two writers; let each seal its own")
    if wrong := sorted(present ^ files.keys()):
        raise ValueError(f"{final.name}/{wrong[0]}: the parts of the manifest and the files differ; join all parts")
    manifest = draft / MANIFEST
    manifest.write_bytes(_manifest_text(step, files))
    for path in (manifest, *(path for path in draft.rglob("*") if path.is_dir()), draft):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
        fsync_path(path)
    if final.exists():  # a damaged one of an older attempt, or this step is saved again
        final.rename(root / f"{_REMOVED}{final.name}")
    draft.rename(final)
    fsync_path(root)
    tidy(root)
    return final


def _manifest_text(step: int, files: Files) -> bytes:
    """The only accepted text, with its own sha256, so that a change of any byte is detected."""
    body = {"step": step, "files": dict(sorted(files.items()))}
    own = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": own}, indent=1).encode() + b"\n"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def faults(folder: Path) -> list[Problem]:
    """What is wrong with a checkpoint, one problem for each file; none when every byte is as it was written."""

    def problem(name: str, got: str) -> Problem:
        return Problem(f"{folder.name}/{name}", got, code="bad-file")

    try:
        text = read_file(folder / MANIFEST)
    except OSError as error:
        return [problem(MANIFEST, error.strerror or str(error))]
    try:
        node = parse_json(text)
        whole = text == _manifest_text(node["step"], node["files"]) and node["step"] == step_of(folder)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        return [problem(MANIFEST, "is not as it was written")]
    return [problem(name, got) for name, of in node["files"].items() if (got := _fault(folder / name, of))]


def _fault(path: Path, written: dict[str, int | str]) -> str:
    try:
        size = path.stat().st_size
        if size != written["bytes"]:
            return f"has {size} bytes where {written['bytes']} were written"
        return "" if sha256(path) == written["sha256"] else "its bytes changed since it was written (sha256 differs)"
    except OSError as error:
        return error.strerror or str(error)


def newest_first(root: Path) -> list[Path]:
    """The folders that look like checkpoints, newest step first; nothing is verified."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def newest_verified(root: Path) -> tuple[Path | None, list[Problem]]:
    """The newest checkpoint without a fault, and the faults of those that are newer."""
    found: list[Problem] = []
    for folder in newest_first(root):
        wrong = faults(folder)
        if not wrong:
            return folder, found
        found += wrong
    return None, found


def set_aside_after(root: Path, step: int, why: str = "damaged") -> None:
    """Rename the checkpoints later than `step` to `why`-step_N, so that they no longer count; their files are kept."""
    for folder in newest_first(root):
        if step_of(folder) > step:
            aside, number = root / f"{why}-{folder.name}", 1
            while aside.exists():
                aside, number = root / f"{why}-{folder.name}-{number}", number + 1
            folder.rename(aside)


def folder_digests(folder: Path) -> dict[str, object]:
    """sha256 of each file of a folder in a checkpoint, as its manifest says; nothing where it lies in none."""
    try:
        files = parse_json(read_file(folder.parent / MANIFEST))["files"]
        return {name: of["sha256"] for name, of in files.items() if name.startswith(f"{folder.name}/")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def validated(folder: Path) -> dict[str, float]:
    """Metrics of the validation of a checkpoint's weights; empty where none followed its step, or its trainer.json
    cannot be read."""
    try:
        node = parse_json(read_file(folder / "trainer.json"))["validated"]
        return {name: float(x) for name, x in node["metrics"].items()} if node["step"] == step_of(folder) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


Grade = Callable[[Path], float | None]
"""Scores a checkpoint, higher is better; None where it has no score."""


def best_first(root: Path, grade: Grade) -> list[Path]:
    """Those with a grade, of equals the newer first; nothing is verified."""
    graded = [(value, step_of(path), path) for path in newest_first(root) if (value := grade(path)) is not None]
    return [path for _, _, path in sorted(graded, reverse=True)]


def retain(root: Path, last: int, best: int, grade: Grade, sealed: Path | None = None) -> list[Path]:
    """Remove all but the `last` newest, the `best` best that verify, and the newest that verifies; returns the removed.

    Where none verifies, all stay. `sealed` was written just now, and is known to verify. Others are hashed only where
    a removal depends on them: none is while `sealed` is the newest and the best. So a damaged one among the best may
    stay until its place is needed.
    """
    every, ranked, known = newest_first(root), best_first(root, grade), {sealed: True}

    def verified(path: Path) -> bool:
        if path not in known:
            known[path] = not faults(path)
        return known[path]

    def among_best(folder: Path) -> bool:
        if folder not in ranked or not best:
            return False
        better = sorted(ranked[: ranked.index(folder)], key=lambda path: path not in known)  # known ones cost nothing
        if len(better) < best:
            return known.get(folder, True)
        return len(list(islice(filter(verified, better), best))) < best and verified(folder)

    gone = []
    for folder in every[last:]:
        if next(filter(verified, every), None) in (None, folder) or among_best(folder):
            continue
        folder.rename(root / f"{_REMOVED}{folder.name}")  # a half-removed folder must not look like a checkpoint
        gone.append(folder)
    tidy(root)
    return gone


def tidy(root: Path) -> None:
    """Remove what a kill left: unfinished and half-removed folders. Only the run's one writer may call it."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.name.startswith((_UNFINISHED, _REMOVED)):
            shutil.rmtree(path, ignore_errors=True)
