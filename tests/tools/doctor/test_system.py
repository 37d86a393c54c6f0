"""Limits and secrets."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from launcher.tools.doctor import system


@pytest.mark.parametrize(
    ("soft", "hard", "for_ray", "expected"),
    [
        (100, 20_000, False, ("FAIL", "use ulimit -n 1024")),  # Python itself hardly starts
        (512, 20_000, False, ("WARN", "use ulimit -n 1024")),
        (512, 512, False, ("WARN", "use ulimit -n 1024 as root, or limits.conf")),  # this user may not
        (1024, 20_000, False, ("OK", "")),  # what most systems give
        (1024, 20_000, True, ("WARN", "use ulimit -n 8192")),  # Ray holds a connection to every worker
    ],
)
def test_open_files(
    soft: int, hard: int, for_ray: bool, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    (found,) = [one for one in system.check(for_ray=for_ray) if one.subject == "open files"]
    assert (found.level, found.fix) == expected


def test_a_small_shared_memory(tmp_path: Path, small_disk) -> None:
    """64 MB is a container's default."""
    found = system.check_shared_memory(small_disk(64 << 10, tmp_path / "shm"))
    assert found.level == "WARN" and found.fix == "start the container with --shm-size=8g"


CANARY = "hf_canaryDontTell"


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (CANARY, None),
        ("", "WARN"),  # set to nothing
        (f"{CANARY}\n", "WARN"),  # read from a file with its line end
        (f'"{CANARY}"', "WARN"),  # quoted in a file of `env` that nothing unquotes
        (f" {CANARY}", "WARN"),
    ],
)
def test_secrets_are_told_by_name_only(value: str, level: str | None) -> None:
    told, *wrong = system.check_secrets({"HF_TOKEN": value})
    assert told.message == ("HF_TOKEN" if value else "no variable: only public repositories can be downloaded")
    assert [one.level for one in wrong] == ([level] if level else [])
    text = " ".join(one.line for one in (told, *wrong))
    assert "canary" not in text and str(len(value)) not in text
