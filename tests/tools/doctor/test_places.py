"""Folders that cannot be written, each for a real reason."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.tools.doctor import network, places
from launcher.tools.doctor.places import CheckedFolder, check_place

Mount = Callable[[int, Path], Path]
MB = 1 << 20


def test_a_healthy_folder_is_left_as_it_was(tmp_path: Path) -> None:
    found = check_place(CheckedFolder("run root", tmp_path, "--root DIR", little=0))
    assert (found.level, found.fix) == ("OK", "")
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_is_judged_by_where_it_would_be_made(tmp_path: Path) -> None:
    found = check_place(CheckedFolder("run root", tmp_path / "a" / "b", "--root DIR", little=0))
    assert found.level == "OK" and found.message.endswith("(not made yet)")
    assert list(tmp_path.iterdir()) == []


def test_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = check_place(CheckedFolder("data store", tmp_path / "file" / "data", "RLRUN_DATA=DIR"))
    assert found.level == "FAIL" and f"{tmp_path}/file is a file" in found.message
    assert found.fix == "use a folder's path (RLRUN_DATA=DIR)"


def test_a_system_that_takes_no_files() -> None:
    assert check_place(CheckedFolder("run root", Path("/proc/runs"), "--root DIR")).level == "FAIL"


def test_a_full_disk(tmp_path: Path, small_disk: Mount) -> None:
    disk = small_disk(64, tmp_path / "disk")
    (disk / "much").write_bytes(bytes(48 << 10))
    found = check_place(CheckedFolder("run root", disk, "--root DIR"))
    assert found.level == "FAIL" and "no space left" in found.message
    assert found.fix == "use room there, or another disk (--root DIR)"
    assert [path.name for path in disk.iterdir()] == ["much"]


def test_a_disk_with_no_room_for_a_run(tmp_path: Path, small_disk: Mount) -> None:
    """A small file fits, a checkpoint would not."""
    found = check_place(CheckedFolder("run root", small_disk(4096, tmp_path / "disk"), "--root DIR"))
    assert found.level == "FAIL" and "0.0 GB free" in found.message


def test_a_disk_that_is_read_only(tmp_path: Path, small_disk: Mount) -> None:
    disk = small_disk(4096, tmp_path / "disk")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found = check_place(CheckedFolder("model store", disk, "RLRUN_MODELS=DIR"))
    assert found.level == "FAIL" and "read-only" in found.message
    assert found.fix == "use a folder that can be written (RLRUN_MODELS=DIR)"


def test_little_room_is_a_warning(tmp_path: Path) -> None:
    assert check_place(CheckedFolder("run root", tmp_path, "--root DIR", little=1 << 60)).level == "WARN"


def test_locks_that_hold_nobody_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network disks; here the system's own call is the edge."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    found = check_place(CheckedFolder("run root", tmp_path, "--root DIR", little=0))
    assert found.level == "WARN" and found.message.endswith("locks hold nobody off there")


def test_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: time.sleep(100))
    began = time.monotonic()
    found = check_place(CheckedFolder("run root", tmp_path, "--root DIR"), patience_s=0.2)
    assert found.level == "FAIL" and "no answer in 0.2 s" in found.message
    assert time.monotonic() - began < 60


def test_the_home_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_DATA", "~nobody-here/data")
    monkeypatch.setenv("RLRUN_MODELS", "~nobody-here/models")
    found, wrong = places.places(tmp_path)
    assert [result.level for result in wrong] == ["FAIL", "FAIL"]
    assert {place.what for place in found} == {"run root", "hub cache", "temporary"}


def test_within_passes_on_what_was_raised() -> None:
    def broken() -> None:
        raise FileNotFoundError("gone")

    assert network.call_with_timeout(5, lambda: 7) == 7
    with pytest.raises(FileNotFoundError, match="gone"):
        network.call_with_timeout(5, broken)
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        network.call_with_timeout(0.1, lambda: time.sleep(1))


def test_both_the_file_and_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may refuse either, and a checkpoint needs both."""
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    check_place(CheckedFolder("run root", tmp_path, "--root DIR"))
    assert synced == [False, True]
