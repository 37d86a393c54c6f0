"""Versions against what metadata requires: real metadata, of distributions that are made up."""

from __future__ import annotations

import platform
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

    def put(name: str, version: str, wants: tuple[str, ...] = (), python: str = ">=3.8") -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
        (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {want}" for want in wants)]) + "\n")

    return put


PYTHON = ("OK", "python: ")


@pytest.mark.parametrize(
    ("wants", "python", "expected"),
    [
        (("part>=1",), ">=3.8", [PYTHON, ("OK", "packages: 1 packages are compatible")]),
        (("part>=2",), ">=3.8",  # too old
         [PYTHON, ("FAIL", "part: 1.5 is installed, whole wants >=2; run pip install 'part>=2'")]),
        (("part<1",), ">=3.8",  # too new
         [PYTHON, ("FAIL", "part: 1.5 is installed, whole wants <1; run pip install 'part<1'")]),
        (("absent",), ">=3.8",
         [PYTHON, ("FAIL", "absent: is not installed, whole wants any version; run pip install 'absent'")]),
        (('absent; sys_platform == "plan9"',), ">=3.8", [PYTHON, ("OK", "packages: 0 packages are compatible")]),
        # nobody asked for that extra
        (('absent; extra == "more"',), ">=3.8", [PYTHON, ("OK", "packages: 0 packages are compatible")]),
        ((), ">=3.99", [("FAIL", f"python: is {platform.python_version()}, and >=3.99 is needed; use python >=3.99"),
                        ("OK", "packages: 0 packages are compatible")]),
        (None, "", [("WARN", "whole: is found on the path but not installed")]),
    ],
)  # fmt: skip
def test_own_needs(install: Install, wants: Any, python: str, expected: list[tuple[str, str]]) -> None:
    install("part", "1.5")
    if wants is not None:
        install("whole", "1", wants, python)
    found = [(one.level, one.line[: len(line)]) for one, (_, line) in
             zip(packages.check_packages("whole"), expected, strict=True)]  # fmt: skip
    assert found == expected


def test_this_environment_is_compatible() -> None:
    assert {one.level for one in packages.check_packages("rlrun")} <= {"OK", "WARN"}
