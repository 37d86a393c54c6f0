"""What a downloaded folder says of itself: where each byte came from, and that all of them are there.

<folder>/.rlrun/  manifest.json   written last, whole: with it, and with the sizes it names, the folder is complete
                  before.json     the manifest of what stood here before, while something else takes its place
                  partial/        bytes of unfinished files, each named by the hash of the content
                  lock            held by the one process that writes
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.checkpoints import sha256
from launcher.core.files import fsync_path, write_atomic
from launcher.core.problems import Problems, error_message
from launcher.hubs import names
from launcher.hubs.repo import RemoteFile

_POLL_S = 0.2


@dataclass(frozen=True)
class Manifest:
    source: str
    kind: str
    repo: str
    revision: str
    commit: str
    files: dict[str, dict[str, int | str]]
    """path -> bytes and sha256"""


def home(folder: Path) -> Path:
    """The folder of our own things, made. Raises `Problems` where a link would lead them elsewhere."""
    ours = folder / names.OURS
    if ours.is_symlink() or (ours / "partial").is_symlink():
        raise Problems([f"{ours}: is a link; a folder that nobody else wrote to would do"])
    (ours / "partial").mkdir(parents=True, exist_ok=True)
    return ours


def partial(folder: Path, file: RemoteFile) -> Path:
    """Where the unfinished bytes of a file lie."""
    content = file.sha256 or f"git-{file.git_sha1}"
    of_path = hashlib.sha256(file.path.encode()).hexdigest()[:8]  # two files may have one content
    return folder / names.OURS / "partial" / f"{content}-{of_path}"


def read(folder: Path, name: str = "manifest.json") -> Manifest | None:
    """None where there is none, or where it is not one of ours."""
    try:
        node = parse_json((folder / names.OURS / name).read_bytes())
        made = Manifest(**node)
        sizes = [of["bytes"] for of in made.files.values()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if names.faults(made.files) or not all(isinstance(size, int) for size in sizes) else made


def write(folder: Path, manifest: Manifest) -> None:
    """From here on the folder is complete; what only an unfinished one needs is taken away."""
    path = folder / names.OURS / "manifest.json"
    write_atomic(path, json.dumps(asdict(manifest), indent=1) + "\n")
    path.chmod(0o644)  # others may use a shared store
    fsync_path(path.parent)
    for name in ("before.json", "theirs.json"):
        (path.parent / name).unlink(missing_ok=True)
    shutil.rmtree(path.parent / "partial", ignore_errors=True)


def set_aside(folder: Path, wanted: Iterable[str]) -> frozenset[str]:
    """Until the next `write` the folder is not what its manifest says. Returns the files that are not ours to replace:
    those that stood here when we first came."""
    ours = home(folder)
    first_time = not any((ours / name).exists() for name in ("manifest.json", "before.json", "theirs.json"))
    if first_time:
        there = [path for path in wanted if os.path.lexists(folder / path)]
        write_atomic(ours / "theirs.json", json.dumps(there) + "\n")
    with suppress(FileNotFoundError):
        (ours / "manifest.json").replace(ours / "before.json")
    try:
        return frozenset(parse_json((ours / "theirs.json").read_bytes()))
    except FileNotFoundError:
        return frozenset()


def complete(folder: Path) -> Manifest | None:
    """The manifest, where every file is there in its size. Nothing is hashed: `verify` does that."""
    manifest = read(folder)
    if manifest is None:
        return None
    for path, of in manifest.files.items():
        file = folder / path
        if not file.is_file() or file.stat().st_size != of["bytes"]:
            return None
    return manifest


def verify(folder: Path) -> list[str]:
    """Hash every file again: one line for each that is not what was downloaded."""
    manifest = read(folder)
    if manifest is None:
        return [f"{folder}: has no manifest, so nobody knows what it should hold; downloading it here would do"]
    found = []
    for path, of in manifest.files.items():
        try:
            if (folder / path).stat().st_size != of["bytes"]:
                found.append(f"{folder / path}: has another size than the manifest says; downloading again would do")
            elif sha256(folder / path) != of["sha256"]:
                found.append(f"{folder / path}: its bytes changed (sha256 differs); downloading again would do")
        except OSError as error:
            found.append(f"{folder / path}: {error_message(error)}; downloading again would do")
    return found


@contextmanager
def locked(folder: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """One writer for a folder: who comes second is told, and waits."""
    descriptor = os.open(home(folder) / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                who = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "another process"
                waiting(f"{folder}: waits for {who}, which is downloading to it")
                time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)
