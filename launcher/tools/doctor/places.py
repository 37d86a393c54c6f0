"""The folders that runs write to: in each a real file is written, synced and locked."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.core import machine
from launcher.core.check_result import CheckResult, from_problems
from launcher.core.problems import OnMessage, Problems, error_message
from launcher.data.rows import store as data_store
from launcher.hubs import huggingface
from launcher.models import store

GB = 1e9
LITTLE_BYTES = int(10 * GB)  # less than many checkpoints


def check(root: Path, say: OnMessage) -> Iterator[CheckResult]:
    """A result on each folder that a run in `root` writes to. A disk that hangs is the one that was said last."""
    folders: list[tuple[str, Callable[[], Path], str]] = [
        ("run root", root.absolute, "--root DIR (trainer.run_root)"),
        ("data store", data_store, "RLRUN_DATA=DIR"),
        ("model store", store.root, "RLRUN_MODELS=DIR"),
        ("hub cache", huggingface.cache, "HF_HOME=DIR"),
        ("temporary", lambda: Path(tempfile.gettempdir()), "TMPDIR=DIR"),
    ]
    for purpose, locate, by in folders:
        try:
            path = locate().absolute()
        except Problems as problems:
            yield from from_problems(problems.problems)
        except (OSError, RuntimeError) as error:  # no folder for temporary files; the home of an unknown user
            yield CheckResult("FAIL", purpose, error_message(error), f"set {by}")
        else:
            say(f"writing to {path}")
            yield check_folder(purpose, path, by)


def check_folder(purpose: str, path: Path, by: str) -> CheckResult:
    """The result on one folder, or on the nearest folder above it that is there. `by` is what chooses another one."""
    existing = path
    try:
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        trouble, free = _write_to(existing), machine.free_disk_bytes(path)
    except OSError as error:
        fix = f"use a folder with some room that can be written ({by})"
        return CheckResult("FAIL", purpose, f"{existing}: {error_message(error)}", fix)
    message = f"{path}: {free / GB:.1f} GB free{'' if path.exists() else ' (not made yet)'}"
    if trouble:
        return CheckResult("WARN", purpose, f"{message}; {trouble}", f"use a local disk ({by})")
    if free < LITTLE_BYTES:
        return CheckResult("WARN", purpose, f"{message}, which is little", f"use another disk ({by})")
    return CheckResult("OK", purpose, message)


def _write_to(folder: Path) -> str:
    """Write a file as runs do. Returns why a lock does not keep a second process from writing the same run there, or
    "". Raises `OSError` where writing fails."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".rlrun-doctor-") as file:
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            with Path(file.name).open("rb") as other:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"locks do not work there ({error_message(error)})"
    return "locks hold nobody off there"
