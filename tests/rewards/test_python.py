"""A person's own function: whatever it does, the answer it did it to has no score, and the others have theirs."""

from __future__ import annotations

import copy
import json
import math
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.core.activity import reported_to
from launcher.core.events import Waiting
from launcher.engines.verl.reader import VerlReader
from launcher.engines.verl.score import report_wait, scored
from launcher.rewards import pool
from launcher.rewards.python import Python
from launcher.spec.reward import Answer, score_safely

WILD = """
import os, sys, time

def wild(data_source, solution_str, ground_truth, extra_info=None):
    exec(solution_str, globals())
    return globals().pop("given", 0.25)
"""
Write = Callable[..., Python]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(text: str, **values: Any) -> Python:
        (tmp_path / "mine.py").write_text(textwrap.dedent(text))
        return Python(**{"path": str(tmp_path / "mine.py"), **values})

    return write


R12 = [
    ("pass", 0.25, ""),
    ("raise ValueError('no')", None, "ValueError: no (mine.py:5: exec(solution_str, globals()))"),
    ("while True: pass", None, "took longer than 1 s (mine.py:5: exec(solution_str, globals()))"),
    ("given = None", None, "gave None; expected a number"),
    ("given = float('nan')", None, "gave nan; expected a finite number"),
    ("given = 1e30", None, "gave 1e+30; expected a number between -1e+06 and 1e+06"),
    ("given = [0.5, 0.5]", None, "gave a list; expected a number"),
    ("given = True", 1.0, ""),  # as verl takes it
    ("os._exit(3)", None, "its process ended with exit code 3"),
    ("sys.exit(0)", None, "SystemExit: 0 (mine.py:5: exec(solution_str, globals()))"),
    ("os.kill(os.getpid(), 9)", None, "its process was killed by SIGKILL"),
    ("os.fork()", 0.25, ""),  # both come back; one of them is ours
    ("os.fork() or os.setsid()", 0.25, ""),
    ("print('x' * 10_000_000); os.write(2, b'x' * 10_000_000)", 0.25, ""),
    ("os.closerange(3, 65536)", None, "its process was killed by SIGKILL"),  # our channel, too
    ("os.close(0); os.close(1)", 0.25, ""),
    (
        "raise type('Rude', (Exception,), {'__str__': lambda self: 1 / 0})",
        None,
        "Rude (mine.py:5: exec(solution_str, globals()))",
    ),
    ("given = {'score': 0.5, 'acc': 1, 'pred': 'x'}", 0.5, ""),
    ("given = {'acc': 1}", None, "gave a dict without score; expected a dict with score"),
    ("x = bytearray(4 << 30)", None, "MemoryError (mine.py:5: exec(solution_str, globals()))"),
]


def test_r12(written: Write) -> None:
    """In one call, so that what one answer does to the process shows in the next."""
    reward = written(WILD, name="wild", timeout_s=1.0, memory_gb=1.0)
    begin = time.monotonic()
    found = score_safely(reward, [Answer(code, prompt=code) for code, _, _ in R12])
    assert time.monotonic() - begin < 120  # a hang of a second, and a new process for each that died
    for (code, score, reason), total, fault in zip(R12, found.total, found.faults, strict=True):
        assert fault == reason, code
        assert math.isnan(total) if score is None else total == score, code
    again = score_safely(reward, [Answer("pass")])
    assert list(again.total) == [0.25]


@pytest.mark.parametrize("truth", [3, 0.5, True, ["3", 4], {"target": [1]}])
def test_the_function_is_given_the_type_of_the_row(written: Write, truth: Any) -> None:
    reward = written(f"def compute_score(solution_str, ground_truth): return repr(ground_truth) == {repr(truth)!r}")
    assert reward.score([Answer("x", json.dumps(truth), typed_truth=truth)]) == [1.0]
    asked = {"response": "x", "ground_truth": truth, "data_source": "", "extra_info": None}
    assert scored(reward, asked)["score"] == 1.0  # as verl's bridge asks for it


def test_with_verl_the_row_of_a_reward_that_waits_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "SLOW_S", 0.1)
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef compute_score(*given):\n    time.sleep(99)\n")
    asked = {"response": "4", "ground_truth": "4", "data_source": "", "extra_info": {"index": 7}}
    with reported_to(report_wait):
        scored(Python(path=str(file), timeout_s=1.0), asked)
    lines = capsys.readouterr().err.splitlines()
    events = [event for line in lines for event in VerlReader(0).console(f"(RewardLoopWorker pid=7) {line}")]
    waits = [event.text for event in events if isinstance(event, Waiting)]
    assert "reward slow.py:3: time.sleep(99), row 7 (extra_info.index)" in waits and waits[-1] == ""


# ---- what it is given


@pytest.mark.parametrize(
    "head",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info)",  # verl's
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)",
        "async def compute_score(data_source, solution_str, ground_truth, extra_info)",
    ],
)
def test_verls_signature(head: str, written: Write) -> None:
    body = "return {'score': 0.5, 'right': data_source + solution_str + ground_truth + extra_info['x'] == 'abcd'}"
    reward = written(f"{head}:\n    {body}")
    assert reward.problems() == []
    found = score_safely(reward, [Answer("b", "c", "a", {"x": "d"})])
    assert (list(found.total), found.parts) == ([0.5], {"right": [1.0]})


@pytest.mark.parametrize(
    ("body", "total", "faults"),
    [
        ("return [price * (s == t) for s, t in zip(solution_strs, ground_truths)]", [2.0, 0.0, 2.0], [""] * 3),
        ("return [float(s) for s in solution_strs]", [1.0, None, 2.0], ["", "ValueError", ""]),  # asked again, singly
        ("return [1.0]", [None] * 3, ["gave 1 scores for 3 answers; expected one for each"] * 3),
        ("return None", [None] * 3, ["TypeError"] * 3),
    ],
)
def test_a_batch_with_an_argument_of_its_own(
    body: str, total: list[float | None], faults: list[str], written: Write
) -> None:
    reward = written(
        f"def compute_score(data_sources, solution_strs, ground_truths, extra_infos, price):\n    {body}",
        kwargs={"price": 2},
    )
    assert reward.problems() == []
    found = score_safely(reward, [Answer("1", "1"), Answer("x", "1"), Answer("2", "2")])
    assert [None if math.isnan(score) else score for score in found.total] == total
    assert [fault.partition(":")[0] for fault in found.faults] == faults


def test_its_neighbours_can_be_imported_and_rows_hold_what_json_does_not(written: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("ONE = 1.0")
    reward = written("import beside\ndef compute_score(extra_info, solution_str): return beside.ONE")
    assert list(score_safely(reward, [Answer("\ud800", extra_info={"p": tmp_path, "n": math.nan})]).total) == [1.0]


def test_a_file_that_cannot_be_imported_is_tried_once(written: Write, tmp_path: Path) -> None:
    reward = written(f"open({str(tmp_path / 'tries')!r}, 'a').write('x')\nimport nowhere\ndef compute_score(**k): pass")
    found = score_safely(reward, [Answer("")] * 5)
    assert set(found.faults) == {
        "cannot be loaded: ModuleNotFoundError: No module named 'nowhere' (mine.py:2: import nowhere)"
    }
    assert (tmp_path / "tries").read_text() == "x"


# ---- before it starts


@pytest.mark.parametrize(
    ("text", "values", "line"),
    [
        ("def f(x:\n", {}, "reward.path: {path}:1: '(' was never closed; use a Python file that compiles"),
        ("x = '\0'", {}, "reward.path: {path}: source code string cannot contain null bytes; use a Python file that"
         " compiles"),
        ("def compute(solution_str): pass", {},
         "reward.name: {path} has no function 'compute_score'; did you mean reward.name=compute?"),
        ("", {"name": "fn"}, "reward.name: {path} has no function 'fn'; there is none yet"),
        ("def compute_score(a, b): pass", {}, "reward.name: {path}:1: compute_score wants a, b;"
         " expected compute_score(data_source, solution_str, ground_truth, extra_info)"),
        ("def compute_score(): pass", {}, "reward.name: {path}:1: compute_score does not take the answer;"
         " expected compute_score(data_source, solution_str, ground_truth, extra_info)"),
        ("def compute_score(solution_str): pass", {"kwargs": {"k": 1}},
         "reward.kwargs: compute_score takes no 'k'; it may be solution_str"),
        ("", {"path": "nowhere.py"},
         "reward.path: 'nowhere.py' cannot be read, no such file or directory; use a Python file"),
        ("import nowhere\nprint('not run')\ndef compute_score(solution_str, k): pass", {"kwargs": {"k": 1}}, None),
        ("from elsewhere import compute_score", {}, None),  # taken on trust
        ("import functools\ncompute_score = functools.partial(print)", {}, None),
        ("@wrapped\ndef compute_score(a, b): pass", {}, None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_without_running_it(
    text: str, values: dict[str, Any], line: str | None, written: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    reward = written(text, **values)
    assert list(map(str, reward.problems())) == ([] if line is None else [line.format(path=reward.path)])
    assert capsys.readouterr().out == ""


def test_it_is_found_from_any_folder(written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("def compute_score(solution_str): return 1.0")
    monkeypatch.chdir(tmp_path)
    absolute = Python(path="mine.py").with_absolute_paths()
    others = [str(*Python(path=path).problems()).rpartition("; ")[2] for path in ("nine.py", "tune.py")]
    assert others == ["did you mean reward.path=mine.py?", "use a Python file"]
    monkeypatch.chdir("/")
    assert absolute.problems() == [] and list(score_safely(absolute, [Answer("")]).total) == [1.0]


def test_a_long_function_can_be_copied_once_its_arguments_are_known(written: Write) -> None:
    chain = "".join(f"    {'el' * (number > 0)}if given == {number}:\n        pass\n" for number in range(400))
    reward = written(f"def compute_score(solution_str):\n    given = 1\n{chain}    return 0.5\n")
    assert "solution_str" not in reward.unaccepted() != ()
    assert copy.deepcopy(reward) == reward
