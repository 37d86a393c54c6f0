"""The folders that runs write to: in each a real file is written, synced, locked and renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from launcher.core import machine
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.files import fsync_path
from launcher.core.problems import Problems, error_message
from launcher.data import prepare
from launcher.hubs import huggingface
from launcher.models import store
from launcher.tools.doctor.network import call_with_timeout

GB = 1e9
PATIENCE_S = 10.0
FULL_BYTES, LITTLE_BYTES = 256 << 20, int(10 * GB)
TRIAL = bytes(1 << 16)
PREFIX = ".rlrun-doctor-"


@dataclass(frozen=True)
class CheckedFolder:
    """A folder, its purpose, and the argument that changes it."""

    what: str
    path: Path
    by: str
    little: int = LITTLE_BYTES
    """Bytes below which a warning is due."""


def places(root: Path) -> tuple[list[CheckedFolder], list[CheckResult]]:
    """The folders that a run in `root` writes to, and problems of their names."""
    named: list[tuple[str, Callable[[], Path], str]] = [
        ("run root", root.absolute, "--root DIR (trainer.run_root)"),
        ("data store", prepare.store, "RLRUN_DATA=DIR"),
        ("model store", store.root, "RLRUN_MODELS=DIR"),
        ("hub cache", huggingface.cache, "HF_HOME=DIR"),
    ]
    found, wrong = list[CheckedFolder](), list[CheckResult]()
    for what, where, by in named:
        try:
            found.append(CheckedFolder(what, where().absolute(), by))
        except Problems as problems:
            wrong += from_problems(problems.problems)
        except RuntimeError as error:
            wrong.append(CheckResult("FAIL", what, error_message(error), f"set {by}"))
    try:
        found.append(CheckedFolder("temporary", Path(tempfile.gettempdir()), "TMPDIR=DIR", little=int(GB)))
    except OSError as error:  # it tried each folder that there is
        wrong.append(CheckResult("FAIL", "temporary", error_message(error), "set TMPDIR=DIR"))
    return found, wrong


def check(root: Path) -> list[CheckResult]:
    found, wrong = places(root)
    return [*wrong, *(check_place(place) for place in found)]


def check_place(place: CheckedFolder, patience_s: float = PATIENCE_S) -> CheckResult:
    """A disk that does not answer in `patience_s` is reported, not waited for."""
    try:
        message, trouble = call_with_timeout(patience_s, lambda: _tried(place.path))
        free = machine.free_disk_bytes(place.path)
    except TimeoutError as error:
        fix = f"use a disk that answers ({place.by})"
        return CheckResult("FAIL", place.what, f"{place.path}: {error_message(error)}", fix)
    except OSError as error:
        fix = f"use {_cure(error)} ({place.by})"
        return CheckResult("FAIL", place.what, f"{place.path}: {error_message(error)}", fix)
    message = f"{place.path}: {free / GB:.1f} GB free{message}"
    more_room = f"free some space, or use another disk ({place.by})"
    if free < FULL_BYTES:
        return CheckResult("FAIL", place.what, message, more_room)
    if trouble:
        return CheckResult("WARN", place.what, f"{message}; {trouble}", f"use a local disk ({place.by})")
    if free < place.little:
        return CheckResult("WARN", place.what, f"{message}, which is little", more_room)
    return CheckResult("OK", place.what, message)


def _tried(path: Path) -> tuple[str, str]:
    """What the disk is like, and what does not work on it. Raises `OSError` where no file can be written."""
    folder = standing(path)
    trouble = _trial(folder)
    kind = _kind_of_disk(folder)
    return (f" on {kind}" if kind else "") + ("" if folder == path else " (not made yet)"), trouble


def standing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there. Raises `NotADirectoryError` where that is a file."""
    found = next(place for place in (path, *path.parents) if place.exists())
    if not found.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{found} is a file", str(found))
    return found


def _trial(folder: Path) -> str:
    """Writes a file as runs do; what does not hold there."""
    first = folder / f"{PREFIX}{uuid4().hex}"
    second = first.with_suffix(".moved")
    try:
        with first.open("xb") as file:
            file.write(TRIAL)
            file.flush()
            os.fsync(file.fileno())
            locked = _locks(file.fileno(), first)
        first.rename(second)
        fsync_path(folder)
        return locked
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def _locks(held: int, path: Path) -> str:
    """A second process that would go on with the same run is told by a lock (`flock`) that there is a first."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:
        return f"locks do not work there ({error_message(error)})"
    return "locks hold nobody off there"


def _kind_of_disk(folder: Path) -> str:
    """The kind of the file system that holds `folder`, as `ext4` or `nfs4`; empty where the system does not tell."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    whole, best, kind = folder.resolve(), -1, ""
    for line in lines:
        _, mount, name, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if whole.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), name
    return kind


def _cure(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "room there, or another disk"
    if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return "a folder's path"
    return "a folder that can be written"


def put_token(path: Path) -> Path:
    """An empty file that other nodes look for, in `path` or where it will be made. Raises `OSError`."""
    token = standing(path) / f"{PREFIX}{uuid4().hex}.token"
    token.touch(mode=0o600, exist_ok=False)
    return token
