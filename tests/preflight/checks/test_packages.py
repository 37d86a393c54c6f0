"""Versions against what metadata requires: real metadata, of distributions that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.preflight.checks import packages

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution on the path, as pip would."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, version: str, wants: tuple[str, ...] = ()) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {want}" for want in wants)]) + "\n")

    return put


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        (("part>=1",), ("OK", "packages: 1 packages are compatible")),
        (("part>=2",), ("FAIL", "part: 1.5 is installed, whole wants >=2; run pip install 'part>=2'")),  # too old
        (("part<1",), ("FAIL", "part: 1.5 is installed, whole wants <1; run pip install 'part<1'")),  # too new
        (("absent",), ("FAIL", "absent: is not installed, whole wants any version; run pip install 'absent'")),
        (('absent; sys_platform == "plan9"',), ("OK", "packages: 0 packages are compatible")),
        (('absent; extra == "more"',), ("OK", "packages: 0 packages are compatible")),  # nobody asked for that extra
        (None, ("WARN", "whole: is found on the path but not installed")),
    ],
)
def test_own_needs(install: Install, wants: Any, expected: tuple[str, str]) -> None:
    install("part", "1.5")
    if wants is not None:
        install("whole", "1", wants)
    (found,) = packages.check_packages("whole")
    assert (found.level, found.line[: len(expected[1])]) == expected


def test_this_environment_is_compatible() -> None:
    assert {one.level for one in packages.check_packages("rlrun")} <= {"OK", "WARN"}
