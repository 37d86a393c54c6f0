"""The lines of each package may only fall, unless its row in tests/lines.yaml says what the new lines are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "lines.yaml"
SLACK = 0.02
"""A package that has become smaller than its row by more than this share lowers the row, so that the gain stays."""


def read_table(text: str) -> dict[str, dict]:
    """Each row: the most lines that the package may have, and the reasons of every time that it was raised."""
    return {name: {"lines": 0, "gained": [], **row} for name, row in yaml.safe_load(text).items()}


def count_lines(place: str) -> int:
    """Physical lines of the Python files below a folder, or of those directly in it where the name ends with `/*`."""
    folder = ROOT / place.removesuffix("/*")
    return sum(
        len(path.read_text().splitlines()) for path in folder.glob("*.py" if place.endswith("/*") else "**/*.py")
    )


ROWS = read_table(TABLE.read_text())


@pytest.mark.parametrize("place", ROWS)
def test_a_package_only_becomes_smaller(place):
    lines, most = count_lines(place), ROWS[place]["lines"]
    assert lines <= most, f"{place}: {lines} lines, at most {most}; say in tests/lines.yaml what more lines gain"
    assert lines >= most * (1 - SLACK) - 20, f"{place}: {lines} lines; lower its row, {most}, in tests/lines.yaml"


def test_every_package_has_a_row():
    folders = {f"launcher/{path.name}" for path in (ROOT / "launcher").iterdir() if (path / "__init__.py").exists()}
    assert folders <= {place for name in ROWS for place in (name, name.rpartition("/")[0])}


def test_a_raised_row_says_what_was_gained():
    """Compared with the table as the commit before the last change of it had it."""
    git = ["git", "-C", str(ROOT)]
    changes = subprocess.run(
        [*git, "log", "-2", "--format=%H", "--", "tests/lines.yaml"], capture_output=True, text=True, check=False
    ).stdout.split()
    if len(changes) < 2:
        pytest.skip("the table has no earlier version here")
    shown = subprocess.run([*git, "show", f"{changes[1]}:tests/lines.yaml"], capture_output=True, text=True, check=True)
    for name, before in read_table(shown.stdout).items():
        now = ROWS.get(name, {"lines": 0, "gained": []})
        assert now["lines"] <= before["lines"] or len(now["gained"]) > len(before["gained"]), (
            f"{name}: raised from {before['lines']} to {now['lines']} lines without saying what was gained"
        )
