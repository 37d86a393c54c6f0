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


@pytest.mark.parametrize(
    ("kib", "spoil", "level", "message"),
    [
        (64, lambda disk, _: (disk / "much").write_bytes(bytes(48 << 10)), "FAIL", "no space left"),
        (4096, lambda disk, _: subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True), "FAIL",
         "read-only"),
        (0, lambda _, patch: patch.setattr(system, "LITTLE_BYTES", 1 << 60), "WARN", "which is little"),
        # as on some network disks; here the system's own call is the edge
        (0, lambda _, patch: patch.setattr("fcntl.flock", lambda *_: None), "WARN", "locks hold nobody off there"),
    ],
    ids=["full", "read-only", "little room", "no locks"],
)  # fmt: skip
def test_a_disk_that_is_no_good_is_named_and_left_as_it_was(
    kib: int, spoil: Callable[[Path, pytest.MonkeyPatch], object], level: str, message: str,
    tmp_path: Path, small_disk: Mount, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    disk = small_disk(kib, tmp_path / "disk") if kib else tmp_path
    spoil(disk, monkeypatch)
    before = sorted(disk.iterdir())
    found = check(disk)
    assert found.level == level and message in found.message and sorted(disk.iterdir()) == before


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
