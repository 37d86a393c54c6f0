"""Reads that never wait, and atomic and append-only writes that survive a kill, a full disk or a second writer.

A folder may hold a pipe, a socket or a device, for which a plain `open` waits or which it reads without end: files that
a person did not name one by one are opened here. Secrets are redacted from all that is written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems
from launcher.core.redaction import redact

PACKAGE = Path(__file__).parents[1]
WHOLE_BYTES = 2**28  # most bytes of a file that is read at once
LINE_BYTES = 2**26  # most bytes of a line that are kept; a context of a million tokens has about a tenth of that
BUFFER = 2**17  # bytes read at a time, as lines of logs are longer than Python's default of 8 KiB
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def conf_dir() -> Path:
    """The config groups: inside the package where it is installed, beside it in a clone."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def expand_user(path: str | Path) -> Path:
    """`path` with `~` expanded. Raises `Problems` where the user has no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        got = "nobody here has such a home folder"
        raise Problems(Problem(str(path), got, "use a whole path", "not-found")) from error


def open_file(path: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raises `OSError` at once for a pipe, a socket, a device or a folder."""
    _check_regular(os.stat(path).st_mode, path)  # before opening, which has effects on some devices
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor).st_mode, path)
        return BufferedReader(FileIO(descriptor), BUFFER)
    except OSError:
        os.close(descriptor)
        raise


def _check_regular(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        got = f"is {_KINDS.get(stat.S_IFMT(mode), 'of another kind')}, not a file"
        raise OSError(errno.EINVAL, got, str(path))


def read_file(path: str | Path, most: int = WHOLE_BYTES) -> bytes:
    """All of a regular file. Raises `OSError` as `open_file` does, and where it has more than `most` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""  # it may grow
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))
    return content


class PathIn:
    """Attribute of an object with a `path`: the file or folder `name` in it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, of: type) -> Path:
        return Path(owner.path / self.name)


class AppendOnlyFile:
    """An append-only text file. While the disk refuses writes, what was appended is kept in memory and written later:
    all of it, or the last lines that have at most `most` bytes."""

    def __init__(self, descriptor: int, most: int | None = None) -> None:
        self._file, self._most = descriptor, most
        self._pending = b""
        self.refused: OSError | None = None
        """The error of the last write or sync; None if it succeeded."""

    @classmethod
    def open(cls, path: Path) -> AppendOnlyFile:
        """Open at its end; a last line that a kill left half-written is ended first."""
        log = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        size = os.fstat(log._file).st_size
        if size and os.pread(log._file, 1, size - 1) != b"\n":
            log.append("")
        return log

    def append(self, line: str) -> None:
        self.write(redact(line).encode("utf-8", "backslashreplace") + b"\n")

    def write(self, text: bytes) -> None:
        """Append a text that is redacted already."""
        self._pending += text
        self.flush()

    def flush(self) -> None:
        """Write what is pending. A line cut by a full disk is completed by the next call."""
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._file, self._pending) :]
            self.refused = None
        except OSError as error:
            self.refused = error
            if self._most and len(self._pending) > self._most:  # the line that was cut ends there
                self._pending = b"\n" + self._pending[-self._most - 1 :].partition(b"\n")[2]

    @property
    def disk_full(self) -> bool:
        """Whether the disk, or a quota on it, had no room at the last try."""
        return self.refused is not None and self.refused.errno in NO_ROOM

    def sync(self) -> None:
        """Make what was appended durable (fsync); on an error, `refused` is set."""
        self.flush()
        try:
            os.fsync(self._file)
        except OSError as error:  # also where it is a pipe, which has nothing to sync
            self.refused = error

    def close(self) -> None:
        self.flush()
        os.close(self._file)


def read_lines(file: BufferedReader) -> Iterator[tuple[bytes, int, bool]]:
    """(line, its length in bytes, whether it ends with a newline) of each line from the file's position on; only the
    last may lack the newline. A line longer than LINE_BYTES is cut to them."""
    while line := file.readline(LINE_BYTES):
        size, ended = len(line), line.endswith(b"\n")
        if size == LINE_BYTES and not ended:
            skipped, ended = _skip_line(file)
            size += skipped
        yield line, size, ended


def _skip_line(file: BufferedReader) -> tuple[int, bool]:
    """Skip to the next line; (bytes skipped, whether the line had an end). Holes of a sparse file are not read."""
    start = file.tell()
    while piece := file.readline(2**20):
        if piece.endswith(b"\n"):
            return file.tell() - start, True
        skip_hole(file)
    return file.tell() - start, False


def skip_hole(file: BufferedReader) -> None:
    """If the file's position is in a hole of a sparse file, move to the hole's end."""
    try:
        file.seek(file.tell(), os.SEEK_DATA)
    except OSError:  # only a hole is left
        file.seek(0, os.SEEK_END)


class NewLines:
    """The lines appended to a file after byte `offset`, each once it is whole; a file that is replaced or truncated is
    read from its beginning."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self._inode = 0

    def read(self, *, last: bool = False) -> Iterator[str]:
        """The lines since the last call, one at a time; `last`: also a line without a newline. Without such a file
        there are none."""
        return (line.decode("utf-8", "replace").removesuffix("\n") for line in self.read_bytes(last=last))

    def read_bytes(self, *, last: bool = False) -> Iterator[bytes]:
        """The same as bytes, with their newlines; `offset` is behind the line that was given last."""
        if not self.path.is_file():  # not written yet; never a pipe, which would block
            return
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size < self.offset or self._inode not in (0, status.st_ino):
                self.offset = 0
            self._inode = status.st_ino
            file.seek(self.offset)
            for line, size, ended in read_lines(file):
                if not (last or ended):
                    return
                self.offset += size
                yield line


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` in one step: a reader finds the old text or the new one. A link is replaced, never followed, as a
    copied folder may hold links to anywhere. Raises `OSError`, also where a pipe, a socket, a device or a folder is.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISLNK(mode := path.lstat().st_mode):
            _check_regular(mode, path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(redact(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
