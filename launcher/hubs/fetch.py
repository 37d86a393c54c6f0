"""Downloads files of a hub's repository into a folder: several at once, verified, under a lock, by the hubs' clients.

A client leaves each file in a staging folder. It gets its name in the folder once its hash is that of the listing, and
the folder gets its manifest once all files are there.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launcher.core.files import fsync_path
from launcher.core.problems import Problem, Problems, error_message
from launcher.hubs import huggingface, manifest, modelscope, names
from launcher.hubs.manifest import Manifest
from launcher.hubs.progress import OnProgress, ProgressBoard, Stopped
from launcher.hubs.repo import Kind, Listing, RemoteFile, Source, check_repo

HUBS = {"huggingface": huggingface, "modelscope": modelscope}
ATTEMPTS = 3
"""Per file. The clients retry too, but Hugging Face's not after a 5xx, ModelScope's not after a lost connection."""
RETRY_S = 1.0
"""Seconds before the second attempt; it doubles with each one."""
_POLL_S = 0.1
_STOP_S = 1.0  # a thread that waits for the network ends later, and gives no file its name any more


def list_files(kind: Kind, repo: str, *, sources: Sequence[Source], revision: str | None = None) -> Listing:
    """The files of the first source that has the repository. Raises `Problems` with the reason of each source."""
    check_repo(repo, revision)
    if huggingface.offline():
        got = "not here, and HF_HUB_OFFLINE forbids to download it"
        raise Problems(Problem(repo, got, "unset HF_HUB_OFFLINE once", "not-found"))
    problems: list[Problem] = []
    for source in sources:
        try:
            return HUBS[source].list_files(kind, repo, revision)
        except Problems as refused:
            problems += refused.problems
    raise Problems(problems)


def fetch(listed: Listing, wanted: Sequence[RemoteFile], folder: Path, watch: OnProgress, *, workers: int = 4) -> None:
    """Download `wanted` into `folder`, and write its manifest when all are there.

    `watch` is called several times a second, in the caller's thread. After a kill, a fault or Ctrl-C the next call
    downloads only the files that are missing. Raises `Problems` or `OSError`.
    """
    if problems := _file_problems(listed, wanted):
        raise Problems(problems)
    folder.mkdir(parents=True, exist_ok=True)
    folder, board = folder.resolve(), ProgressBoard(wanted)

    def on_wait(line: str) -> None:
        board.note(line)
        watch(board.read())

    with manifest.locked(folder, on_wait):
        if _is_complete(folder, listed, wanted):
            for file in wanted:
                board.show(file, file.size, done=True)
        else:
            replaces = manifest.set_aside(folder)
            transfer = _Transfer(listed, folder, manifest.staging_folder(folder, listed), replaces, board)
            _check_room(folder, transfer.staging, wanted)
            _finish(listed, wanted, folder, transfer.run(wanted, workers, watch))
    watch(board.read())


def _file_problems(listed: Listing, wanted: Sequence[RemoteFile]) -> list[Problem]:
    """Why these files cannot be downloaded: unsafe names, or no hash to verify them."""
    where = f"{listed.repo} on {listed.source}"
    problems = [problem.within(where) for problem in names.check_names(file.path for file in wanted)]
    got, fix = "comes without a hash, so its bytes cannot be verified", "use another source"
    hashless = [file.path for file in wanted if not file.sha256 and not file.git_sha1]
    return problems + [Problem(f"{where}: {path}", got, fix, "not-supported") for path in hashless]


def _is_complete(folder: Path, listed: Listing, wanted: Sequence[RemoteFile]) -> bool:
    """Whether the manifest lists these files with these hashes, and all are there; only sizes are checked on disk."""
    present = manifest.complete(folder)
    if present is None or not present.is_of(listed):
        return False
    return all(
        file.path in present.files
        and present.files[file.path]["bytes"] == file.size
        and file.sha256 in (None, present.files[file.path]["sha256"])
        for file in wanted
    )


def _check_room(folder: Path, staging: Path, wanted: Sequence[RemoteFile]) -> None:
    """Raises `Problems` where the disk cannot hold the bytes that are missing."""
    present = (path for file in wanted for path in (folder / file.path, staging / file.path) if path.is_file())
    missing = sum(file.size for file in wanted) - sum(path.stat().st_size for path in present)
    free = shutil.disk_usage(folder).free
    if missing > free:
        disk = next(path for path in (folder, *folder.parents) if path.is_mount())
        got = f"{missing} bytes are to be downloaded and {disk} has {free} free"
        raise Problems(Problem(str(folder), got, "use a folder on another disk", "not-enough"))


@dataclass
class _Transfer:
    """One download: what its worker threads share."""

    listed: Listing
    folder: Path
    staging: Path
    replaces: frozenset[str]
    """Paths of the files that an earlier download wrote, which may be replaced."""
    board: ProgressBoard
    todo: deque[RemoteFile] = field(default_factory=deque)
    sha256: dict[str, str] = field(default_factory=dict)
    """Hash of each file that is complete and has its final name, by path."""
    found: list[Problem] = field(default_factory=list)

    def run(self, wanted: Sequence[RemoteFile], workers: int, watch: OnProgress) -> dict[str, str]:
        """The sha256 of each file, by path. However it ends, no file is renamed afterwards. Raises `Problems`."""
        self.todo.extend(sorted(wanted, key=lambda file: -file.size))
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(max(1, min(workers, len(wanted))))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    watch(self.board.read())
        finally:
            self.board.stopping.set()
            deadline = time.monotonic() + _STOP_S
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(deadline - time.monotonic(), 0))
        if self.found:
            raise Problems(self.found)
        assert len(self.sha256) == len(wanted), "a worker died of what it printed above"
        return self.sha256

    def _work(self) -> None:
        with suppress(IndexError, Stopped):
            while True:
                file = self.todo.popleft()
                try:
                    self.sha256[file.path] = self._fetch_file(file)
                    self.board.show(file, file.size, done=True)
                except Problems as refused:
                    self.found += refused.problems
                except OSError as error:
                    fix = "use a folder that is writable and has room"
                    self.found.append(Problem(str(self.folder / file.path), error_message(error), fix, "not-permitted"))

    def _fetch_file(self, file: RemoteFile) -> str:
        """Download a file to its final name in the folder; its sha256. Raises `Problems`, `OSError` or `Stopped`."""
        target = self._target(file)
        if target.is_file() and not target.is_symlink() and (sha256 := self._sha256_if_equal(file, target)):
            return sha256
        if os.path.lexists(target) and file.path not in self.replaces:
            got, fix = "is there already and is another file", "move it, or use another folder"
            raise Problems(Problem(str(target), got, fix, "bad-file"))
        for attempt in range(ATTEMPTS):
            try:
                staged, sha256 = self._download(file)
                break
            except Problems as refused:
                unreachable = all(problem.code == "not-reachable" for problem in refused.problems)
                if attempt + 1 == ATTEMPTS or not unreachable:
                    raise
                self.board.note(f"{refused.lines[0].split(';')[0]}; trying again")
                self.board.stopping.wait(RETRY_S * 2**attempt)
        target = self._target(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        fsync_path(staged)
        self.board.show(file, file.size)  # the last check for a stop: raises `Stopped`
        os.replace(staged, target)
        fsync_path(target.parent)
        return sha256

    def _download(self, file: RemoteFile) -> tuple[Path, str]:
        """A verified file in the staging folder, and its sha256."""
        self.board.show(file, 0)
        add_fetched = partial(self.board.add_fetched, file)
        staged = HUBS[self.listed.source].download(self.listed, file, self.staging, add_fetched)
        if sha256 := self._sha256_if_equal(file, staged):
            return staged, sha256
        staged.unlink()
        got = "its bytes are not those that the hub lists"
        raise Problems(Problem(file.path, got, "try again later, or use another source", "not-reachable"))

    def _sha256_if_equal(self, file: RemoteFile, path: Path) -> str:
        return file.sha256_if_equal(path, lambda _: self.board.show(file, file.size))

    def _target(self, file: RemoteFile) -> Path:
        try:
            return names.path_inside(self.folder, file.path)
        except ValueError as error:
            problem = Problem(file.path, error_message(error), "use a folder without such links", "bad-file")
            raise Problems(problem) from error


def _finish(listed: Listing, wanted: Sequence[RemoteFile], folder: Path, sha256: dict[str, str]) -> None:
    """Write the manifest, and delete files of an earlier commit: a model must not be a mix of two."""
    previous = manifest.read(folder, "before.json")
    files: dict[str, dict[str, int | str]] = {}
    if previous and previous.is_of(listed):
        files |= {path: entry for path, entry in previous.files.items() if (folder / path).is_file()}
    elif previous:
        for path in previous.files.keys() - {file.path for file in wanted}:
            with suppress(ValueError):
                names.path_inside(folder, path).unlink(missing_ok=True)
    files |= {file.path: {"bytes": file.size, "sha256": sha256[file.path]} for file in wanted}
    source = listed.source, listed.kind, listed.repo, listed.revision, listed.commit
    manifest.write(folder, Manifest(*source, dict(sorted(files.items()))))
