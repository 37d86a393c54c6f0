"""How many files a new metric and a new event touch; docs/extend.md and its test show the other kinds of things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The package and its config groups, to be edited."""
    for name in ("launcher", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def insert(file: Path, before: str, text: str) -> None:
    """Add lines to a file, before the only place that begins with `before`."""
    content = file.read_text()
    assert content.count(before) == 1
    file.write_text(content.replace(before, text + before))


def printed(clone: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(clone), "COLUMNS": "200"}
    ran = subprocess.run([sys.executable, *words], cwd=clone, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_metric_is_one_row_in_one_file(clone: Path) -> None:
    row = "actor/new: {label: new one, meaning: what the new one measures, unit: nats}\n"
    insert(clone / "conf/metrics.yaml", "actor/entropy:\n", row)
    (shown,) = [
        line for line in printed(clone, "-m", "launcher", "config", "metrics").splitlines() if "actor/new" in line
    ]
    assert "what the new one measures" in shown and "nats" in shown


EVENT = '''@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """Training waits for a person."""

    text: str


'''
CASE = """        case Paused(text=text):
            return replace(state, phase="paused", waits_for=text)
"""
FOLDED = """
from launcher.core.events import Paused, from_line, to_line
from launcher.core.state import fold

state = fold([from_line(to_line(Paused(text="the reward fell")))])
print(state.phase, state.waits_for)
"""


def test_an_event_is_a_class_and_a_case_in_two_files(clone: Path) -> None:
    insert(clone / "launcher/core/events.py", "@dataclass(frozen=True, kw_only=True)\nclass Crashed(Event):", EVENT)
    insert(clone / "launcher/core/state.py", "        case Crashed(lines=lines):", CASE)
    insert(clone / "launcher/core/state.py", "    Phase,\n", "    Paused,\n")
    assert printed(clone, "-c", FOLDED) == "paused the reward fell\n"
