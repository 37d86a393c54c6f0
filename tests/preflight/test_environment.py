"""`rlrun env check`: each fault of an environment is named, and no good one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.environments.python import PythonEnvironment
from launcher.preflight.checks.environment import try_environment
from launcher.spec.data import Row

FILE = Path(__file__).parent / "environments.py"
ROWS = [Row(f"rows.jsonl:{number}", "what is right?", ground_truth=f"right {number}") for number in (1, 2)]


def results(name: str, many: int = 8) -> list[tuple[str, str]]:
    made = PythonEnvironment(path=str(FILE), name=name, tool_timeout_s=2, timeout_s=4, workers=1)
    assert not made.problems() and not made.missing_requirements()
    return [(one.level, one.message) for one in try_environment(made, ROWS, many)]


@pytest.mark.parametrize("name", ["Adds", "Looks", "Waits", "Scored", "Turns", "Boxed", "Hands"])
def test_no_good_one_is_refused(name: str) -> None:
    found = results(name, 60 if name == "Adds" else 8)
    assert [message for level, message in found if level != "OK"] == []
    assert any("each has an equal score a second time" in message for _, message in found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Forgets", "rows.jsonl:1: an empty answer gives another state in a second session"),
        ("Draws", "rows.jsonl:1: draw({}) gives another text in a second session"),
        ("Dies", "end({}) ends with a fault: the environment's process ended with exit code 3"),
        ("Hangs", "hang({}) ends with a fault: tool hang took longer than 2 s"),
        ("Raises", "an empty answer ends with a fault: KeyError: 'no' (environments.py:"),
        ("Leaks", "60 sessions leave 60 files behind"),
        ("Grows", "bytes behind"),
        ("Swallows", "an empty answer gives another score where no file and no connection can be opened"),
        ("Shares", "rows.jsonl:1: the ground truth gives another score while others run"),
        ("Hides", 'end({"how": "soon", "code": 1}) ends with a fault: the environment\'s process ended with exit code'),
        ("Half", "rows.jsonl:1: an empty answer has the reward None"),
        ("Upside", "an empty answer scores 1, the ground truth 0"),
    ],
)
def test_each_fault_is_named(name: str, message: str) -> None:
    wrong = [text for level, text in results(name, 60 if name in ("Leaks", "Grows") else 8) if level == "FAIL"]
    assert len(wrong) == 1 and message in wrong[0], wrong
