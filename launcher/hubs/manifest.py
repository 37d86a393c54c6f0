"""The manifest of a downloaded folder: where its files come from, their sizes and hashes, and that all are there.

<folder>/.rlrun/  manifest.json      written last, whole: with it, and with the sizes it names, the folder is complete
                  before.json        the manifest of what stood here before, while something else takes its place
                  partial/           where the hub's client leaves its files until they are verified
                  lock               held by the one process that writes
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.files import fsync_path, read_file, write_atomic
from launcher.core.problems import Problem, Problems
from launcher.hubs import names
from launcher.hubs.repo import Listing

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

    def is_of(self, listed: Listing) -> bool:
        """Whether it describes files of this commit."""
        return (self.source, self.repo, self.commit) == (listed.source, listed.repo, listed.commit)


def make_own_folder(folder: Path) -> Path:
    """Makes `<folder>/.rlrun`. Raises `Problems` where it, or a path in it, is a link."""
    rlrun_folder = folder / names.OURS
    for path in (rlrun_folder, rlrun_folder / "partial", *(rlrun_folder / "partial").rglob("*")):
        if path.is_symlink():
            raise Problems(Problem(str(path), "is a link", "use a folder that nobody else writes to", "bad-file"))
    (rlrun_folder / "partial").mkdir(parents=True, exist_ok=True)
    return rlrun_folder


def staging_folder(folder: Path, listed: Listing) -> Path:
    """The folder where the client leaves files of this commit until they are verified.

    Removes what other commits left, and temporary files of Hugging Face's client: 2.4 resumes none after a kill.
    """
    parent = make_own_folder(folder) / "partial"
    name = hashlib.sha256(f"{listed.source} {listed.repo} {listed.commit}".encode()).hexdigest()[:16]
    for other in parent.iterdir():
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    for partial in (parent / name).glob(".cache/**/*.incomplete"):
        partial.unlink()
    (parent / name).mkdir(exist_ok=True)
    return parent / name


def read(folder: Path, name: str = "manifest.json") -> Manifest | None:
    """The manifest; None where there is none, or where it is not valid."""
    try:
        node = parse_json(read_file(folder / names.OURS / name))
        manifest = Manifest(**node)
        sizes = [entry["bytes"] for entry in manifest.files.values()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return None if names.check_names(manifest.files) or not all(isinstance(size, int) for size in sizes) else manifest


def write(folder: Path, manifest: Manifest) -> None:
    """Mark the folder as complete, and remove the files of an unfinished download. Raises `OSError`."""
    path = folder / names.OURS / "manifest.json"
    write_atomic(path, json.dumps(asdict(manifest), indent=1) + "\n")
    path.chmod(0o644)  # others may use a shared store
    fsync_path(path.parent)
    (path.parent / "before.json").unlink(missing_ok=True)
    shutil.rmtree(path.parent / "partial", ignore_errors=True)


def set_aside(folder: Path) -> frozenset[str]:
    """Mark the folder as incomplete until the next `write`. Returns the paths in its manifest: these files may be
    replaced, and no others. Raises `Problems` and `OSError`."""
    rlrun_folder = make_own_folder(folder)
    with suppress(FileNotFoundError):
        (rlrun_folder / "manifest.json").replace(rlrun_folder / "before.json")
    previous = read(folder, "before.json")
    return frozenset(previous.files if previous else ())


def complete(folder: Path) -> Manifest | None:
    """The manifest, if every file is there with its size, else None."""
    manifest = read(folder)
    try:
        whole = manifest and all(
            (folder / path).stat().st_size == entry["bytes"] for path, entry in manifest.files.items()
        )
    except OSError:
        return None
    return manifest if whole else None


@contextmanager
def locked(folder: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Locks a folder for one writer. A second one waits, and `on_wait` is called with a line that says so."""
    descriptor = os.open(make_own_folder(folder) / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "another process"
                on_wait(f"{folder}: waiting for {holder}, which is downloading to it")
                time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)
