"""One file from a hub into a folder: taken up where it was left, verified, and only then given its name."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.core.files import fsync_path
from launcher.core.problems import Problems
from launcher.hubs import manifest, names, web
from launcher.hubs.progress import Board
from launcher.hubs.repo import Address, NetworkFaults, Patience, RemoteFile
from launcher.hubs.web import Fault, Opened, OutOfRange, Refused

SOME = 1 << 20  # bytes that count as getting on
MOST_ANEW = 3  # times that a file may begin from its first byte again
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Stopped(Exception):
    """Everything was stopped; what is on disk is taken up the next time."""


@dataclass(frozen=True)
class Job:
    """One file, and what all files share."""

    file: RemoteFile
    address: Callable[[RemoteFile], Address]
    folder: Path
    theirs: bool
    """A file of that name stood there before us: it may be the same, but it is not replaced."""
    board: Board
    patience: Patience


class Partial:
    """The bytes that are here of a file, with the hash of exactly these. No other process may write them.

    Bytes go to the system at once, so that a kill loses none that were read. The name is that of the content: when
    a hub's file changes, its old beginning is not taken for the new one's.
    """

    def __init__(self, job: Job) -> None:
        file, self._job = job.file, job
        self.path = manifest.partial(job.folder, file)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self.size = os.fstat(self._descriptor).st_size
        self.discards = 0
        self._start_hashes()
        if self.size > file.size:
            self.discard()
        left = self.size
        while left:
            if job.board.stopping.is_set():
                self.close()
                raise Stopped
            data = os.read(self._descriptor, min(left, web.CHUNK))
            self._hash(data)
            left -= len(data)
            job.board.at(file, self.size, "checking")

    def _start_hashes(self) -> None:
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % self._job.file.size, usedforsecurity=False)

    def _hash(self, data: bytes) -> None:
        self._sha256.update(data)
        if self._job.file.sha256 is None:
            self._git.update(data)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.write(self._descriptor, left)
            self._hash(bytes(left[:written]))
            left, self.size = left[written:], self.size + written

    def discard(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self.size, self.discards = 0, self.discards + 1
        self._start_hashes()

    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def wrong(self) -> str:
        """Why the bytes are not the file's; empty when they are."""
        file = self._job.file
        kind, found, expected = (
            ("sha256", self._sha256.hexdigest(), file.sha256)
            if file.sha256
            else ("git's sha1", self._git.hexdigest(), file.git_sha1)
        )
        return "" if found == expected else f"its bytes are not those the hub lists ({kind} {found[:12]} came)"

    def place(self, target: Path) -> None:
        """Make the bytes durable, then give them their name, in one step."""
        os.fsync(self._descriptor)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path, target)
        fsync_path(target.parent)

    def close(self) -> None:
        os.close(self._descriptor)


def bring(job: Job, session: web.Session) -> str:
    """Fetch what is missing, verify all, and give the file its name. Returns the sha256.

    Raises `Problems`, `NetworkFaults` or `OSError`; then what was fetched stays for the next call, unless its bytes
    were wrong.
    """
    file, target = job.file, _target(job)
    if target.is_file() and not target.is_symlink() and (found := _same(job, target)):
        job.board.at(file, file.size, "done")
        return found
    if os.path.lexists(target) and job.theirs:
        raise Problems([f"{target}: is there already and is another file; moving it, or another folder, would do"])
    partial = Partial(job)
    try:
        _fill(job, partial, session)
        partial.place(_target(job))
    finally:
        partial.close()
    job.board.at(file, file.size, "done")
    return partial.sha256()


def _target(job: Job) -> Path:
    try:
        return names.inside(job.folder, job.file.path)
    except ValueError as error:
        raise Problems([f"{job.file.path}: {error}; a folder without such links would do"]) from error


def _same(job: Job, target: Path) -> str:
    """The sha256 of a file that stands there already, if it is the one that is wanted."""
    file = job.file
    if target.stat().st_size != file.size:
        return ""
    job.board.at(file, file.size, "checking")
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with target.open("rb") as there:
        while data := there.read(web.CHUNK):
            if job.board.stopping.is_set():
                raise Stopped
            sha256.update(data)
            git.update(data)
    same = sha256.hexdigest() == file.sha256 if file.sha256 else git.hexdigest() == file.git_sha1
    return sha256.hexdigest() if same else ""


def _fill(job: Job, partial: Partial, session: web.Session) -> None:
    """Bring `partial` to a whole file that verifies; failing tries are bounded, those that get on are not."""
    file, patience, board = job.file, job.patience, job.board
    enough = max(1, min(SOME, file.size // 20))
    failures, anew, out_of_range = 0, False, 0
    while True:
        before = partial.size
        try:
            if partial.size < file.size:
                _stream(job, partial, session)
            wrong = partial.wrong()
            if not wrong:
                return
            partial.discard()
            board.at(file, 0, "fetching")
            if anew:
                raise NetworkFaults([f"{file.path}: {wrong}, twice; nothing of it was kept, trying later would do"])
            anew = True
            board.note(f"{file.path}: {wrong}; fetched anew")
        except Refused as error:
            raise Problems([f"{file.path}: {error}; another source or revision would do"]) from error
        except Fault as fault:
            if board.stopping.is_set():
                raise Stopped from fault
            failures = 1 if partial.size - before >= enough else failures + 1
            out_of_range = out_of_range + 1 if isinstance(fault, OutOfRange) else 0
            if out_of_range > 1:  # it means it: these bytes are of something else
                partial.discard()
            if partial.discards >= MOST_ANEW:
                raise NetworkFaults(
                    [f"{file.path}: {fault}, and it began anew {partial.discards} times; trying later would do"]
                ) from fault
            if failures >= patience.attempts:
                raise NetworkFaults(
                    [f"{file.path}: {fault}, {failures} times in a row; {partial.size} of {file.size} bytes are kept,"
                     " trying again goes on from there"]
                ) from fault  # fmt: skip
            board.note(f"{file.path}: {fault}; goes on from byte {partial.size}")
            board.at(file, partial.size, "fetching")
            board.stopping.wait(max(fault.wait_s, patience.backoff_s * 2 ** (failures - 1)))


def _stream(job: Job, partial: Partial, session: web.Session) -> None:
    file, board = job.file, job.board
    address = job.address(file)
    with web.opened(session, address, partial.size, job.patience) as answer:
        board.hold(answer)
        try:
            if board.stopping.is_set():
                raise Stopped
            _check(answer, address, job, partial)
            _read(answer, job, partial)
        finally:
            board.let_go(answer)


def _check(answer: Opened, address: Address, job: Job, partial: Partial) -> None:
    """What the server says of the file, against the listing. A beginning that it does not continue is dropped."""
    file = job.file
    named = (answer.hub_headers.get("X-Linked-Etag") or answer.hub_headers.get("ETag") or "").removeprefix("W/")
    named = named.strip('"').lower()
    if address.etag and _HASH.fullmatch(named) and named != address.etag:
        raise Fault(f"the hub names another content (etag {named[:12]}) than it lists")
    size = answer.size()
    if size is not None and size != file.size:
        raise Fault(f"{answer.host} has {size} bytes where the hub lists {file.size}")
    if answer.begins_at() != partial.size:
        if not answer.whole:
            raise Fault(f"{answer.host} sends other bytes than were asked for")
        job.board.note(f"{file.path}: {answer.host} does not go on from byte {partial.size}; fetched anew")
        partial.discard()


def _read(answer: Opened, job: Job, partial: Partial) -> None:
    file, board, patience = job.file, job.board, job.patience
    since, before = time.monotonic(), partial.size
    while partial.size < file.size:
        data = answer.read()
        if board.stopping.is_set():
            raise Stopped
        if not data:
            raise Fault(f"{answer.host} cut the connection")
        if partial.size + len(data) > file.size:
            raise Fault(f"{answer.host} sends more than the {file.size} bytes the hub lists")
        partial.write(data)
        board.at(file, partial.size, "fetching", fetched=len(data))
        now = time.monotonic()
        if now - since >= patience.window_s:
            if partial.size - before < patience.least_bytes_per_s * (now - since):
                raise Fault(f"{answer.host} has stalled: {partial.size - before} bytes in {now - since:.0f} s")
            since, before = now, partial.size
