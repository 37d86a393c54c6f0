"""`rlrun plan` of models whose files are hostile, which `make hostile` runs.

Each case spoils one file of a small healthy model's folder: its chat template, its configuration, tokenizer, weights
or adapter. Its plan runs in a process of its own with nothing remembered, and must end at most MORE_S after one of the
healthy folder, refuse with 2 and name what is wrong (or be in order, where the file is harmless), without a traceback,
a process that is left behind, or more than MOST_GB in one process. Where a busy machine is slow, CPU seconds decide.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile_cases import CASES, Case
from launch_model import Model

MORE_S, MOST_GB = 5.0, 2.0
KILLED_S = 90.0
LONGEST = 20_000
"""Characters of a plan's output; those of a template's own error are many more."""
REFUSED = 2
HEALTHY = Case("healthy", "healthy", lambda _: None, "OK")
SYSTEM, SECOND, LAST = 7, 1, 39
"""Rows that differ from the others."""


@dataclass(frozen=True)
class Outcome:
    wall_s: float
    cpu_s: float
    gb: float
    code: int
    output: str
    left: list[int]
    """Ids of processes."""
    escaped: bool
    """Code of the template ran."""


def check(case: Case, found: Outcome, base: Outcome) -> None:
    over = min(found.wall_s - base.wall_s, found.cpu_s - base.cpu_s)
    assert over <= MORE_S, f"{over:.1f} s more than the healthy plan"
    assert found.gb <= MOST_GB and not found.left and not found.escaped, found
    end = found.output[-1000:]
    assert "Traceback" not in found.output and "Error:\n" not in found.output, end
    assert len(found.output) <= LONGEST and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", found.output), end
    assert is_as_asked(case.expected, found), f"{case.expected} was asked for; exit code {found.code}\n{end}"


def is_as_asked(expected: str, found: Outcome) -> bool:
    level, _, pattern = expected.partition(" ") if expected.startswith("WARN ") else ("FAIL", "", expected)
    if found.code == 0 and level == "FAIL":
        return expected.startswith("OK")
    if found.code != (REFUSED if level == "FAIL" else 0) or expected == "OK":
        return False
    pattern = pattern.removeprefix("OK or ")
    lines = [line for line in found.output.splitlines() if line.startswith(level)]
    return any(re.search(pattern, line, re.IGNORECASE) for line in lines)


def rows(algorithm: str) -> str:
    """Conversations: one with a system turn, and three whose question says where it stands."""
    found = list[dict[str, object]]()
    for number in range(LAST + 1):
        mark = {SECOND: "second ", LAST: "last "}.get(number, "")
        turns = [{"role": "user", "content": f"{mark}what is {number}+1"}]
        if number == SYSTEM:
            turns.insert(0, {"role": "system", "content": "be brief"})
        if algorithm == "sft":
            found.append({"messages": [*turns, {"role": "assistant", "content": str(number + 1)}]})
        else:
            found.append({"prompt": turns, "ground_truth": str(number + 1)})
    return "".join(json.dumps(row) + "\n" for row in found)


def plan(case: Case, folder: Path) -> Outcome:
    """The case in a folder of its own."""
    Model().save(folder / "m")
    (folder / "rows.jsonl").write_text(rows(case.algorithm))
    case.spoil(folder / "m")
    words = ["plan", f"algorithm={case.algorithm}", "model=hf", "model.path=m", "data=rows.jsonl", "hardware=cpu"]
    cache = {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "1000"}
    started = time.monotonic()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *words], cwd=folder, env={**os.environ, **cache},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    late = threading.Timer(KILLED_S, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    _, status, used = os.wait4(process.pid, 0)  # with all that it has waited for
    late.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    left = _left(str(folder).encode())
    for pid in left:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGKILL)
    text = (folder / "output").read_text(errors="replace")
    escaped = any(path.name == "escaped" for path in folder.rglob("*"))
    cpu, gb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6
    return Outcome(wall, cpu, gb, process.returncode, text, left, escaped)


def _left(folder: bytes) -> list[int]:
    """Processes whose environment has the case's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if folder in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # of somebody else, or ended
            continue
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A plan of the healthy folder: the median of three."""
    plans = [plan(HEALTHY, tmp_path_factory.mktemp("healthy")) for _ in range(3)]
    found = sorted(plans, key=lambda one: one.cpu_s)[1]
    check(HEALTHY, found, found)
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{case.kind}, {case.name}" for case in CASES])
def test_a_plan_names_what_is_hostile(case: Case, base: Outcome, tmp_path: Path) -> None:
    check(case, plan(case, tmp_path), base)
