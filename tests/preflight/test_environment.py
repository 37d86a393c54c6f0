"""`rlrun env check`: each fault of an environment is named, and no good one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.environments.python import PythonEnvironment
from launcher.preflight.checks import environment
from launcher.preflight.checks.environment import try_environment
from launcher.spec.data import Row

FILE = Path(__file__).parent / "environments.py"
ROWS = [Row(f"rows.jsonl:{number}", "what is right?", ground_truth=f"right {number}") for number in (1, 2)]


def results(name: str, many: int, tool_s: float = 2, **methods: str) -> list[tuple[str, str]]:
    made = PythonEnvironment(
        path=str(FILE), name=name, kwargs=methods, tool_timeout_s=tool_s, timeout_s=2 * tool_s, workers=1
    )
    assert not made.problems() and not made.missing_requirements()
    return [(one.level, one.message) for one in try_environment(made, ROWS, many)]


BOXED = "1.0 if text == f'\\\\boxed{{{self.truth}}}' else -float(bool(text))"
"""Counts in its form alone; another answer costs, and an empty one does not."""


@pytest.mark.parametrize(
    ("name", "methods"),
    [("Tools", {}), ("Does", {"reward": BOXED}), *((name, {}) for name in ("Does", "Scored", "Turns", "Hands"))],
)
def test_no_good_one_is_refused(name: str, methods: dict[str, str]) -> None:
    found = results(name, 60 if name == "Tools" else 8, **methods)
    assert [message for level, message in found if level != "OK"] == []
    assert any("each has an equal score a second time" in message for _, message in found)


ARGUMENTS = '{"how": "soon", "code": 1}'


@pytest.mark.parametrize(
    ("methods", "many", "message"),
    [
        ({"reset": "self.state = str(next(numbers))"}, 8,
         "rows.jsonl:1: an empty answer gives another state in a second session"),
        ({"reset": "type(self).held = self.truth", "reward": "float(text == self.held != '')"}, 8,
         "rows.jsonl:1: the ground truth gives another score while others run"),
        ({"end": "random.random()"}, 8, f"rows.jsonl:1: end({ARGUMENTS}) gives another text in a second session"),
        ({"end": "os._exit(code + 2)"}, 8,
         f"end({ARGUMENTS}) ends with a fault: the environment's process ended with exit code 3"),
        ({"end": "time.sleep(3600)"}, 8, f"end({ARGUMENTS}) ends with a fault: tool end took longer than 2 s"),
        ({"reward": "{}['no']"}, 8, "an empty answer ends with a fault: KeyError: 'no' (environments.py:"),
        ({"reward": "1.0 if text == self.truth else None"}, 8, "rows.jsonl:1: an empty answer has the reward None"),
        ({"reward": "1.0 - self._right(text)"}, 8, "an empty answer scores 1, the ground truth 0"),
        ({"reward": "len(text) / 100"}, 8, "a nonsensical answer scores 0.08, the ground truth 0.07"),
        ({"reset": "lock.acquire()", "close": "lock.release()"}, 8, "ends with a fault while other episodes run"),
        ({"reward": "0.5 * opens()"}, 8,
         "an empty answer gives another score where no file and no connection can be opened"),
        ({"reset": "self.held.append(Path(os.devnull).open())"}, 60, "60 sessions leave 60 files behind"),
        ({"reset": "self.held.append(bytearray(10**6))"}, 60, "bytes behind"),
    ],
    ids=lambda given: str(given)[:40],
)  # fmt: skip
def test_each_fault_is_named(methods: dict[str, str], many: int, message: str) -> None:
    wrong = [text for level, text in results("Does", many, **methods) if level == "FAIL"]
    assert len(wrong) == 1 and message in wrong[0], wrong


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"reward": "0.5"}, "an empty answer scores 0.5, the ground truth 0.5, and so does all else"),
        ({"end": "setattr(self, 'truth', '')"}, f"the right answer scores 1 alone, and 0 after end({ARGUMENTS})"),
    ],
)
def test_a_doubtful_score_is_named(methods: dict[str, str], message: str) -> None:
    assert [text for level, text in results("Does", 8, **methods) if level == "WARN"] == [message]


def test_a_slow_tool_is_named_and_not_tried_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SLOW_S", 2.1)
    assert results("Blocks", 8, 8) == [
        ("WARN", "rows.jsonl:1: wait({}) takes 2 s, in which no other episode goes on; leaks were not looked for")
    ]
