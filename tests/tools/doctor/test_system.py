"""Limits of the system, and its name."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from launcher.tools.doctor import system


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
    (found,) = [one for one in system.check() if one.subject == "open files"]
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
