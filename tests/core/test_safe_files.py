"""Files that tell no lie: a log on a full disk loses and tears no line, and a text is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from launcher.core import files
from launcher.core.files import AppendOnlyFile, write_atomic


def lines(count: int) -> list[str]:
    return [f"{number:04d} " + "x" * 90 for number in range(count)]


def written(path: Path) -> list[str]:
    return path.read_text().splitlines()


def make(kind: str, path: Path) -> None:
    """A pipe, a socket, a file of 8 GiB that takes no room, or a link to itself (`loop`) or to what the kind names."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 2**33)
    else:
        path.symlink_to(path if kind == "loop" else kind)


@pytest.mark.parametrize(
    ("kind", "got"),
    [
        ("pipe", "is a pipe, not a file"), ("socket", "is a socket, not a file"), ("/dev/zero", "is a device"),
        ("/dev/tty", "is a device"), (".", "is a folder"), ("loop", "Too many levels"), ("none", "No such file"),
        ("sparse", "has more than 268,435,456 bytes"),
    ],
)  # fmt: skip
def test_only_a_regular_file_is_read_and_nothing_is_waited_for(kind: str, got: str, tmp_path: Path) -> None:
    make(kind, tmp_path / "file")
    with pytest.raises(OSError, match=got):
        files.read_file(tmp_path / "file")


def test_a_link_to_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 9)
    make("text", tmp_path / "link")
    assert files.read_file(tmp_path / "link", most=9) == b"x" * 9
    with pytest.raises(OSError, match="more than 8 bytes"):
        files.read_file(tmp_path / "link", most=8)


def test_a_log_is_appended_to_and_private(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text in ("one", "zwei é", "lone \ud800"):
        log = AppendOnlyFile.open(path)
        log.append(text)
        log.close()
    assert path.read_bytes() == "one\nzwei é\nlone \\ud800\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_log_takes_what_the_system_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes one byte at a time, and refuses every third call."""
    write, calls = os.write, iter(range(10**9))

    def grudging(file: int, data: bytes) -> int:
        if next(calls) % 3 == 2:
            raise OSError(errno.ENOSPC, "full")
        return write(file, data[:1])

    log = AppendOnlyFile.open(tmp_path / "log")
    monkeypatch.setattr(files.os, "write", grudging)
    for line in lines(3):
        log.append(line)
    while log.refused:
        log.flush()
    log.close()
    assert written(tmp_path / "log") == lines(3)


def test_of_what_waits_the_last_lines_are_kept_where_it_is_limited(tmp_path: Path, monkeypatch: Any) -> None:
    write = os.write

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    log = AppendOnlyFile(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 9)
    write(log._file, b"cut in ")  # as a disk that becomes full cuts a line
    monkeypatch.setattr(files.os, "write", refuse)
    for text in (b"the middle\n", b"one\n", b"two\n", b"three\n", b"9\n"):
        log.write(text)
    monkeypatch.undo()
    log.write(b"last\n")
    log.close()
    assert written(tmp_path / "log") == ["cut in ", "three", "9", "last"]


def test_what_has_nothing_to_sync_says_so(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = AppendOnlyFile(writer)
    log.append("line")
    log.sync()
    assert log.refused and log.refused.errno == errno.EINVAL
    log.close()
    assert os.read(reader, 100) == b"line\n"
    os.close(reader)


# ---- replacing a text


def test_a_text_is_replaced_and_private(tmp_path: Path) -> None:
    """Also where a process of the same number was killed: in a container the launcher has the same id every time."""
    path = tmp_path / "spec.yaml"
    path.write_text("old")
    path.chmod(0o644)
    left = tmp_path / f".spec.yaml.{os.getpid()}"
    left.touch(0o600)
    left.write_text("half a te")
    write_atomic(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["spec.yaml"]


@pytest.mark.parametrize(("kind", "got"), [("pipe", "is a pipe, not a file"), ("socket", "is a socket"), ("other", "")])
def test_only_a_file_is_replaced(kind: str, got: str, tmp_path: Path) -> None:
    path, other = tmp_path / "spec.yaml", tmp_path / "other"
    other.write_text("dear")
    make(kind, path)
    before = path.lstat().st_mode
    with pytest.raises(OSError, match=got) if got else nullcontext():
        write_atomic(path, "new")
    assert path.lstat().st_mode == before if got else path.read_text() == "new" and not path.is_symlink()
    assert other.read_text() == "dear" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_whatever_the_system_refuses_the_old_text_stays(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    path = tmp_path / "spec.yaml"
    path.write_text("old")
    monkeypatch.setattr(files.os, call, refuse)
    with pytest.raises(OSError, match=r"full.*spec\.yaml'"):
        write_atomic(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
