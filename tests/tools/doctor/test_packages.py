"""Versions against what metadata requires: real metadata, of distributions that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


def lines(distribution: str) -> list[tuple[str, str]]:
    return [(found.level, found.line) for found in packages.check_packages(distribution)]


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        (("part>=1",), ("OK", "packages: 1 packages are compatible")),
        (("part>=2",), ("FAIL", "part: 1.5 is installed, whole wants >=2; run pip install 'part>=2'")),  # too old
        (("part<1",), ("FAIL", "part: 1.5 is installed, whole wants <1; run pip install 'part<1'")),  # too new
        (("absent",), ("FAIL", "absent: is not installed, whole wants any version; run pip install 'absent'")),
        (('absent; sys_platform == "plan9"',), ("OK", "packages: 0 packages are compatible")),  # not for this system
        (('absent; extra == "more"',), ("OK", "packages: 0 packages are compatible")),  # nobody asked for that extra
    ],
)
def test_own_needs(install: Install, wants: tuple[str, ...], expected: tuple[str, str]) -> None:
    install("part", "1.5")
    install("whole", "1", wants)
    (python, found) = lines("whole")
    assert python[0] == "OK"
    assert found[0] == expected[0] and found[1].startswith(expected[1]), found


def test_a_python_that_is_too_old(install: Install) -> None:
    install("whole", "1", python=">=3.99")
    level, line = lines("whole")[0]
    assert level == "FAIL" and line.endswith(">=3.99 is needed; use python >=3.99")


def test_code_that_was_never_installed() -> None:
    ((level, line),) = lines("no-such-distribution")
    assert level == "WARN" and "not installed" in line


def test_this_environment_is_compatible() -> None:
    assert {level for level, _ in lines("rlrun")} <= {"OK", "WARN"}
