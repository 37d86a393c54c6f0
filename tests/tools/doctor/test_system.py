"""Limits of the system, its name, and folders that cannot be written, each for a real reason."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.core.check_result import CheckResult
from launcher.tools.doctor import system

Mount = Callable[[int, Path], Path]


@pytest.fixture(autouse=True)
def _any_disk_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LITTLE_BYTES", 0)


def check(path: Path) -> CheckResult:
    return system.check_folder("run root", path, "--root DIR")


def test_a_healthy_folder_is_left_as_it_was_and_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found, absent = check(tmp_path), check(tmp_path / "a" / "b")
    assert (found.level, found.fix) == ("OK", "")
    assert absent.level == "OK" and absent.message.endswith("(not made yet)")
    assert list(tmp_path.iterdir()) == []


def test_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = check(tmp_path / "file" / "data")
    assert found.level == "FAIL" and f"{tmp_path}/file: not a directory" in found.message
    assert found.fix == "use a folder with some room that can be written (--root DIR)"


def test_a_full_disk(tmp_path: Path, small_disk: Mount) -> None:
    disk = small_disk(64, tmp_path / "disk")
    (disk / "much").write_bytes(bytes(48 << 10))
    found = check(disk)
    assert found.level == "FAIL" and "no space left" in found.message
    assert [path.name for path in disk.iterdir()] == ["much"]


def test_a_disk_that_is_read_only(tmp_path: Path, small_disk: Mount) -> None:
    disk = small_disk(4096, tmp_path / "disk")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found = check(disk)
    assert found.level == "FAIL" and "read-only" in found.message


def test_little_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LITTLE_BYTES", 1 << 60)
    assert check(tmp_path).level == "WARN"


def test_locks_that_hold_nobody_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network disks; here the system's own call is the edge."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    found = check(tmp_path)
    assert found.level == "WARN" and found.message.endswith("locks hold nobody off there")


def test_the_home_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_DATA", "~nobody-here/data")
    monkeypatch.setenv("RLRUN_MODELS", "~nobody-here/models")
    reported = list[str]()
    levels = {found.subject: found.level for found in system.check_folders(tmp_path, reported.append)}
    assert list(levels.values()).count("FAIL") == 2 and len(levels) == 5
    assert reported[0] == f"writing to {tmp_path}" and len(reported) == 3


@pytest.mark.parametrize(
    ("soft", "level", "fix"),
    [
        (100, "FAIL", "use ulimit -n 1024, as root where that is refused"),  # Python itself hardly starts
        (512, "WARN", "use ulimit -n 1024, as root where that is refused"),
        (1024, "OK", ""),  # what most systems give
    ],
)
def test_open_files(soft: int, level: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 20_000))
    (found,) = [one for one in system.check_system() if one.subject == "open files"]
    assert (found.level, found.fix) == (level, fix)


def test_a_small_shared_memory(tmp_path: Path, small_disk) -> None:
    """64 MB is a container's default."""
    found = system.check_shared_memory(small_disk(64 << 10, tmp_path / "shm"))
    assert found.level == "WARN" and found.fix == "start the container with --shm-size=8g"


def test_a_host_name_that_nobody_knows() -> None:
    found = system.check_hostname("no-such-machine.invalid")
    assert found.level == "WARN"
    assert found.fix.startswith("add the line `127.0.0.1 no-such-machine.invalid` to /etc/hosts")
    assert system.check_hostname("localhost").level == "OK"
