"""A checkpoint is a folder whose manifest verifies; any other folder is not a checkpoint.

    checkpoints/step_000020/  trainer.json  manifest.json, and what the engine writes

It is filled under a temporary name, synced, and renamed, and the manifest (sha256 of every file) is written
last. So a kill leaves either the whole checkpoint or none, and a byte that changed later is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.files import fsync_path, open_file, read_file
from launcher.core.metrics import grade
from launcher.core.problems import Problem

MANIFEST = "manifest.json"
_NAME = re.compile(r"step_[0-9]{6,}")
_SET_ASIDE = re.compile(r"(?:damaged|aside)-step_([0-9]{6,})(?:-[0-9]+)?")
_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


def name_of(step: int) -> str:
    return f"step_{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def write(root: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Let `fill` write the files, then make them a checkpoint; returns its folder. On any error nothing remains."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    tidy(root)
    draft, final = root / f"{_UNFINISHED}{name_of(step)}", root / name_of(step)
    draft.mkdir(mode=0o700)
    try:
        fill(draft)
        files: dict[str, dict[str, int | str]] = {
            path.relative_to(draft).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in _files_in(draft)
        }
        (draft / MANIFEST).write_bytes(_manifest_bytes(step, files))
        for path in (*_files_in(draft), draft / MANIFEST, *(path for path in draft.rglob("*") if path.is_dir()), draft):
            os.chmod(path, 0o700 if path.is_dir() else 0o600)
            fsync_path(path)
        if final.exists():  # damaged, of an older attempt, or of the same step saved before
            final.rename(root / f"{_REMOVED}{final.name}")
        draft.rename(final)
        fsync_path(root)
        tidy(root)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return final


def _manifest_bytes(step: int, files: Mapping[str, Mapping[str, int | str]]) -> bytes:
    """The only valid bytes of the manifest, with a sha256 of their own, so that a change of any byte is detected."""
    body = {"step": step, "files": dict(sorted(files.items()))}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1).encode() + b"\n"


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def faults(folder: Path) -> list[Problem]:
    """What is wrong with a checkpoint, one problem for each file; empty if every byte is as it was written."""

    def problem(name: str, got: str) -> Problem:
        return Problem(f"{folder.name}/{name}", got, code="bad-file")

    try:
        text = read_file(folder / MANIFEST)
    except OSError as error:
        return [problem(MANIFEST, error.strerror or str(error))]
    try:
        node = parse_json(text)
        intact = text == _manifest_bytes(node["step"], node["files"]) and node["step"] == step_of(folder)
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        return [problem(MANIFEST, "is not as it was written")]
    return [problem(name, got) for name, written in node["files"].items() if (got := _fault(folder / name, written))]


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
    folders = [path for path in root.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(folders, key=step_of, reverse=True)


def newest_verified(root: Path) -> tuple[Path | None, list[Problem]]:
    """The newest checkpoint that verifies (None without one), and the problems of all newer ones."""
    problems: list[Problem] = []
    for folder in newest_first(root):
        folder_problems = faults(folder)
        if not folder_problems:
            return folder, problems
        problems += folder_problems
    return None, problems


def set_aside_after(root: Path, step: int, why: str = "damaged") -> None:
    """Rename the checkpoints later than `step` to `why`-step_N, so that they no longer count; their files are kept."""
    for folder in newest_first(root):
        if step_of(folder) > step:
            aside, number = root / f"{why}-{folder.name}", 1
            while aside.exists():
                aside, number = root / f"{why}-{folder.name}-{number}", number + 1
            folder.rename(aside)


def set_aside(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints that were set aside, newest step first."""
    folders = [(int(match[1]), path) for path in root.glob("*-step_*") if (match := _SET_ASIDE.fullmatch(path.name))]
    return sorted(folders, reverse=True)


def folder_digests(folder: Path) -> dict[str, object]:
    """sha256 of each file of a folder in a checkpoint, from the manifest; empty where there is no readable manifest."""
    try:
        files = parse_json(read_file(folder.parent / MANIFEST))["files"]
        return {name: written["sha256"] for name, written in files.items() if name.startswith(f"{folder.name}/")}
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


def retain(root: Path, last: int, best: int, metric: str | None = None, sealed: Path | None = None) -> list[Path]:
    """Remove all but the `last` newest, the `best` best (by `metric`, see `grade`) that verify, and the newest
    that verifies; returns the removed.

    Where none verifies, all stay. `sealed` was written just now and is known to verify. Others are hashed only if one
    with a grade would be removed: then the better ones are, as a damaged one must not be kept in its place.
    """
    good = sealed or newest_verified(root)[0]
    if good is None:
        tidy(root)
        return []
    checkpoints = newest_first(root)
    grades = [(grade(validated(path), metric), step_of(path), path) for path in checkpoints]
    graded = [each for each in grades if each[0] is not None]
    ranked = [path for _, _, path in sorted(graded, reverse=True)]  # of equals the newer first
    kept = {good, *checkpoints[:last], *ranked[:best]}
    if not kept.issuperset(ranked):
        verified = (folder for folder in ranked if folder == good or not faults(folder))
        kept = {good, *checkpoints[:last], *islice(verified, best)}
    removed = [folder for folder in checkpoints if folder not in kept]
    for folder in removed:
        folder.rename(root / f"{_REMOVED}{folder.name}")  # a half-removed folder must not look like a checkpoint
    tidy(root)
    return removed


def tidy(root: Path) -> None:
    """Remove unfinished and half-removed folders that a kill left. Only the run's one writer may call it."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.name.startswith((_UNFINISHED, _REMOVED)):
            shutil.rmtree(path, ignore_errors=True)
