"""The folders that runs write to: in each a real file is written, synced, locked and renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from launcher.core import machine
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.files import NO_ROOM, fsync_path
from launcher.core.problems import Problems, error_message
from launcher.data.rows import store as data_store
from launcher.hubs import huggingface
from launcher.models import store
from launcher.tools.doctor.network import call_with_timeout

GB = 1e9
PATIENCE_S = 10.0  # for a disk that does not answer, as of a server that is gone
FULL_BYTES, LITTLE_BYTES = 256 << 20, int(10 * GB)  # less than a small checkpoint; less than some checkpoints
PREFIX = ".rlrun-doctor-"
NO_FOLDER = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


@dataclass(frozen=True)
class CheckedFolder:
    """A folder, its purpose, and the argument that changes it."""

    what: str
    path: Path
    by: str
    little: int = LITTLE_BYTES
    """Free bytes below which there is a warning."""


def places(root: Path) -> tuple[list[CheckedFolder], list[CheckResult]]:
    """The folders that a run in `root` writes to, and a FAIL for each that has no valid path."""
    candidates: list[tuple[str, Callable[[], Path], str, int]] = [
        ("run root", root.absolute, "--root DIR (trainer.run_root)", LITTLE_BYTES),
        ("data store", data_store, "RLRUN_DATA=DIR", LITTLE_BYTES),
        ("model store", store.root, "RLRUN_MODELS=DIR", LITTLE_BYTES),
        ("hub cache", huggingface.cache, "HF_HOME=DIR", LITTLE_BYTES),
        ("temporary", lambda: Path(tempfile.gettempdir()), "TMPDIR=DIR", int(GB)),
    ]
    folders, failures = list[CheckedFolder](), list[CheckResult]()
    for purpose, locate, by, little in candidates:
        try:
            folders.append(CheckedFolder(purpose, locate().absolute(), by, little))
        except Problems as problems:
            failures += from_problems(problems.problems)
        except (OSError, RuntimeError) as error:  # no folder for temporary files; the home of an unknown user
            failures.append(CheckResult("FAIL", purpose, error_message(error), f"set {by}"))
    return folders, failures


def check(root: Path) -> list[CheckResult]:
    folders, failures = places(root)
    return [*failures, *(check_place(place) for place in folders)]


def check_place(place: CheckedFolder, patience_s: float = PATIENCE_S) -> CheckResult:
    """The result on one folder. A disk that does not answer in `patience_s` is reported, not waited for."""
    try:
        trouble = call_with_timeout(patience_s, lambda: _try_to_write(existing_folder(place.path)))
        free = machine.free_disk_bytes(place.path)
    except OSError as error:
        remedy = "room there, or another disk" if error.errno in NO_ROOM else "a folder that can be written"
        remedy = "a folder's path" if error.errno in NO_FOLDER else remedy
        return CheckResult("FAIL", place.what, f"{place.path}: {error_message(error)}", f"use {remedy} ({place.by})")
    message = f"{place.path}: {free / GB:.1f} GB free{'' if place.path.exists() else ' (not made yet)'}"
    if trouble and free >= FULL_BYTES:
        return CheckResult("WARN", place.what, f"{message}; {trouble}", f"use a local disk ({place.by})")
    if free < place.little:
        level: Literal["WARN", "FAIL"] = "FAIL" if free < FULL_BYTES else "WARN"
        fix = f"free some space, or use another disk ({place.by})"
        return CheckResult(level, place.what, f"{message}, which is little", fix)
    return CheckResult("OK", place.what, message)


def existing_folder(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there. Raises `NotADirectoryError` where that is a file."""
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{existing} is a file", str(existing))
    return existing


def _try_to_write(folder: Path) -> str:
    """Write a file as runs do. Returns why locks do not work there, or "". Raises `OSError` where writing fails."""
    first = folder / f"{PREFIX}{uuid4().hex}"
    second = first.with_suffix(".moved")
    try:
        with first.open("xb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            trouble = _lock_trouble(file.fileno(), first)
        first.rename(second)
        fsync_path(folder)
        return trouble
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _lock_trouble(descriptor: int, path: Path) -> str:
    """Why `flock` does not keep a second process from writing the same run there; empty where it does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:
        return f"locks do not work there ({error_message(error)})"
    return "locks hold nobody off there"


def put_token(path: Path) -> Path:
    """An empty file that other nodes look for, in `path` or where it will be made. Raises `OSError`."""
    token = existing_folder(path) / f"{PREFIX}{uuid4().hex}.token"
    token.touch(mode=0o600, exist_ok=False)
    return token
