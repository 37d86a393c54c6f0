"""Processes beside training: they end with it, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.core.activity import reported_to
from launcher.core.user_code import CallFailure
from launcher.rewards import pool as pools
from launcher.rewards.pool import STARTS, Died, Late, Pool

HANGS = """
import sys
from launcher.rewards.pool import Pool
pool = Pool("python", {"path": sys.argv[1], "name": "f", "kwargs": {}}, 1)
print(pool.ask([[{"response": "", "extra_info": {}, "ground_truth": "", "data_source": ""}]], 99), flush=True)
"""
LONG = """
import os
def f(solution_str):
    open(__file__ + ".pid", "w").write(str(os.getpid()))
    {before}
    while True: pass
"""


def pool_of(folder: Path, text: str, workers: int = 1) -> Pool:
    """Of a function of one's own."""
    (folder / "mine.py").write_text(text)
    return Pool("python", {"path": str(folder / "mine.py"), "name": "f", "kwargs": {}}, workers)


EMPTY = {"response": "", "extra_info": {}, "ground_truth": "", "data_source": ""}


@pytest.mark.parametrize(
    ("before", "number"),
    [("pass", signal.SIGKILL), ("pass", signal.SIGTERM), ("os.fork()", signal.SIGKILL)],
)
def test_it_dies_with_the_process_that_started_it(before: str, number: int, tmp_path: Path, until: Any) -> None:
    """Also in the middle of a loop that never gives way, and with what it has forked."""
    mine = tmp_path / "mine.py"
    mine.write_text(LONG.format(before=before))
    parent = subprocess.Popen([sys.executable, "-c", HANGS, str(mine)])
    told = Path(f"{mine}.pid")
    until(lambda: told.exists() and told.read_text())
    group = int(told.read_text())
    parent.send_signal(number)
    parent.wait()
    until(lambda: not members(group))


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def test_nothing_is_left_when_it_is_forgotten(tmp_path: Path, until: Any) -> None:
    pool = pool_of(tmp_path, "import os\ndef f(solution_str): return os.getpid()", workers=2)
    answers = [[EMPTY]] * 8
    pids = {int(found[0]["score"]) for found in pool.ask(answers, 9)}
    assert pids and all(members(pid) for pid in pids)
    del pool
    until(lambda: not any(members(pid) for pid in pids))


def test_a_process_that_dies_while_it_loads_is_tried_a_few_times(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, "import os\nopen(__file__ + '.n', 'a').write('x')\nos._exit(7)")
    found = pool.ask([[]] * 6, 9)
    assert found == [CallFailure("cannot be loaded: its process ended with exit code 7")] * 6
    assert (tmp_path / "mine.py.n").read_text() == "x" * STARTS


def test_one_that_died_between_two_calls_is_started_anew(tmp_path: Path, until: Any) -> None:
    pool = pool_of(tmp_path, "import os\ndef f(solution_str): return os.getpid()")
    answer = [[EMPTY]]
    pid = int(pool.ask(answer, 9)[0][0]["score"])
    os.kill(pid, signal.SIGKILL)
    until(lambda: not members(pid))
    (found,) = pool.ask(answer, 9)
    assert not isinstance(found, Died) and int(found[0]["score"]) != pid


@pytest.mark.parametrize(
    ("prompts", "late"),
    [
        (["hang"] * 9 + ["ok"] * 3, 9),  # one prompt's answers are no reason to leave out those of others
        (["hang0", "hang1", "hang2", "ok"], 4),  # nothing is in time, so the rest is not asked
        (["hang0", "hang1", "ok", "hang", "ok"], 3),  # one that is in time counts
    ],
)
def test_the_rest_is_not_asked_where_several_prompts_are_late(
    prompts: list[str], late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "GIVE_UP", 3)
    pool = pool_of(
        tmp_path,
        "import time\ndef f(solution_str):\n    open(__file__ + '.n', 'a').write('x')\n"
        "    return time.sleep(99 * ('hang' in solution_str)) or 1.0\n",
    )
    found = pool.ask([[EMPTY | {"response": text}] for text in prompts], 0.2, prompts)
    assert sum(isinstance(one, Late) for one in found) == late
    asked = [one for one in found if not isinstance(one, Late) or not one.reason.startswith("not asked")]
    assert len((tmp_path / "mine.py.n").read_text()) == len(asked)
    assert prompts.count("hang") < 3 or len(asked) == 5  # it is asked about twice


def test_what_takes_long_is_reported_with_its_row_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "SLOW_S", 0.1)
    reported = list[str]()
    pool = pool_of(tmp_path, "import time\ndef f(solution_str):\n    return 1.0 if solution_str else time.sleep(99)\n")
    assert pool.ask([[EMPTY | {"response": "now"}]], 30.0) == [[{"score": 1.0, "wrong": "", "parts": {}}]]
    with reported_to(lambda text, for_s: reported.append(text)):
        (late,) = pool.ask([[EMPTY]], 1.0, ["a.jsonl:2"])
    assert late == Late("took longer than 1 s (mine.py:3: return 1.0 if solution_str else time.sleep(99))")
    first, *others, last = reported
    assert first == "reward mine.py:3: return 1.0 if solution_str else time.sleep(99), row a.jsonl:2"
    assert others and last == "", "its seconds go on until it has ended"
