"""Which source code runs: the commit, and a hash of what differs from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.config.resolve import PACKAGE

LIMIT_S = 10.0  # for all that git is asked about one folder
READ_BYTES, READ_FILES = 2**20, 2_000  # of files that git does not track; what is beyond counts by name and size
_OWN = ("launcher", "conf")  # what decides a result: a new word in the README does not


def own() -> dict[str, str] | None:
    """rlrun's own source tree; None where it was installed and no repository is its home."""
    clone = PACKAGE.parent
    return _seen(clone, _OWN) if _top(clone) == clone.resolve() else None


def around(folder: Path, runs: Path) -> dict[str, str] | None:
    """The repository that `folder` lies in, without the runs in it; None where it lies in none, or in rlrun's own."""
    top = _top(folder)
    if top is None or top == PACKAGE.parent.resolve():
        return None
    inside = runs.resolve().relative_to(top) if runs.resolve().is_relative_to(top) else None
    return _seen(top, [".", f":(exclude){inside}"] if inside else ["."])


def _top(folder: Path) -> Path | None:
    said = _git(folder, time.monotonic() + LIMIT_S, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(said.strip())).resolve() if said else None


def _seen(top: Path, paths: Sequence[str]) -> dict[str, str]:
    """`commit`, and `diff`: sha256 of all changes since, where there are any."""
    until = time.monotonic() + LIMIT_S
    commit = _git(top, until, "rev-parse", "--verify", "--quiet", "HEAD") or b"none yet"
    diff: bytes | None = b""
    if commit != b"none yet":
        # without the programs that a repository's own settings may name
        diff = _git(top, until, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", *paths)
    others = _git(top, until, "ls-files", "--others", "--exclude-standard", "-z", "--", *paths)
    found = {"commit": commit.decode().strip()}
    if diff is None or others is None:
        return {**found, "diff": f"git did not say within {LIMIT_S:.0f} s"}
    if diff or others:
        found["diff"] = _hash(top, diff, others)
    return found


def _hash(top: Path, diff: bytes, others: bytes) -> str:
    whole = hashlib.sha256(diff)
    for number, name in enumerate(sorted(filter(None, others.split(b"\0")))):
        path = top / os.fsdecode(name)
        whole.update(name + b"\0")
        try:
            size = path.lstat().st_size
            whole.update(b"%d\0" % size)
            if number < READ_FILES and size <= READ_BYTES and path.is_file():
                whole.update(path.read_bytes())
        except OSError:  # gone since it was listed, or not for us to read
            whole.update(b"unread\0")
    return whole.hexdigest()


def _git(folder: Path, until: float, *words: str) -> bytes | None:
    """What git prints; None where it fails, is not there, or takes too long."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    told = {**env, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words], env=told, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=max(until - time.monotonic(), 0.1), check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout
