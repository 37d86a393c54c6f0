"""How many files a new metric and a new event touch; docs/extend.md and its test show the other kinds of things."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


ROW = "actor/new: {label: new one, meaning: what the new one measures, unit: nats}\n"
EVENT = '''@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """Training waits for a person."""

    text: str


'''
CHANGE = """    Paused: lambda _, event: {"phase": "paused", "waits_for": event.text},
"""
FOLDED = """
from launcher.core.events import Paused, from_line, to_line
from launcher.core.metrics import described
from launcher.core.state import fold

state = fold([from_line(to_line(Paused(text="the reward fell")))])
print(state.phase, state.waits_for, described()["actor/new"])
"""


def insert(file: Path, before: str, text: str) -> None:
    """Add lines to a file, before the only place that begins with `before`."""
    content = file.read_text()
    assert content.count(before) == 1
    file.write_text(content.replace(before, text + before))


def test_a_metric_is_one_row_and_an_event_a_class_and_a_row(tmp_path: Path) -> None:
    for name in ("launcher", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    insert(tmp_path / "conf/metrics.yaml", "actor/entropy:\n", ROW)
    insert(tmp_path / "launcher/core/events.py", "@dataclass(frozen=True, kw_only=True)\nclass Crashed(Event):", EVENT)
    insert(tmp_path / "launcher/core/state.py", "    Crashed: lambda", CHANGE)
    insert(tmp_path / "launcher/core/state.py", "    Phase,\n", "    Paused,\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", FOLDED], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.stdout.startswith("paused the reward fell ") and "what the new one measures" in ran.stdout, ran.stderr
