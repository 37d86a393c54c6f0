"""`rlrun plan` of models whose files are hostile: `hostile.py [PART OF A NAME ...]`.

Each case spoils one file of a small healthy model's folder: its chat template, its configuration, tokenizer, weights
or adapter. Its plan runs in a process of its own with nothing remembered, and must end at most MORE_S after one of the
healthy folder, refuse with 2 and name what is wrong (or be in order, where the file is harmless), without a traceback,
a process that is left behind, or more than MOST_GB in one process. Where a busy machine is slow, CPU seconds decide.
Ends with 1 where one does not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hostile_files import CASES as FILES
from hostile_templates import CASES as TEMPLATES
from hostile_templates import Case
from launch_model import Model
from rich.console import Console
from rich.table import Table
from rich.text import Text

MORE_S, MOST_GB = 5.0, 2.0
KILLED_S = 90.0
LONGEST = 20_000
"""Characters of a plan's output; those of a template's own error are many more."""
REFUSED = 2
BASE = 3
"""Plans of the healthy folder; the median counts."""
HEALTHY = Case("healthy", "healthy", lambda _: None, "OK")
SYSTEM, SECOND, LAST = 7, 1, 39
"""Rows that differ from the others."""


@dataclass(frozen=True)
class Outcome:
    case: Case
    wall_s: float
    cpu_s: float
    gb: float
    code: int
    output: str
    left: int = 0
    """Processes."""
    escaped: bool = False

    def faults(self, base: Outcome) -> list[str]:
        """Why this case fails; none where it does not."""
        over = min(self.wall_s - base.wall_s, self.cpu_s - base.cpu_s)
        checks = {
            f"{over:.1f} s more than the healthy plan": over > MORE_S,
            f"{self.gb:.2f} GB": self.gb > MOST_GB,
            "a traceback": "Traceback" in self.output or "Error:\n" in self.output,
            f"{len(self.output):,} characters of output": len(self.output) > LONGEST,
            "control characters": bool(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", self.output)),
            f"{self.left} processes left": self.left > 0,
            "code of the template ran": self.escaped,
            f"exit code {self.code}, asked for: {self.case.expected}": not self._as_asked(),
        }
        return [fault for fault, found in checks.items() if found]

    def _as_asked(self) -> bool:
        expected = self.case.expected
        level, _, pattern = expected.partition(" ") if expected.startswith("WARN ") else ("FAIL", "", expected)
        if self.code == 0 and level == "FAIL":
            return expected.startswith("OK")
        if self.code != (REFUSED if level == "FAIL" else 0) or expected == "OK":
            return False
        pattern = pattern.removeprefix("OK or ")
        lines = [line for line in self.output.splitlines() if line.startswith(level)]
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


def plan(case: Case) -> Outcome:
    """The case in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Model().save(folder / "m")
        (folder / "rows.jsonl").write_text(rows(case.algorithm))
        case.spoil(folder / "m")
        return _measured(case, folder)


def _measured(case: Case, folder: Path) -> Outcome:
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
    cpu, gb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6
    text = (folder / "output").read_text(errors="replace")
    escaped = any(path.name == "escaped" for path in folder.rglob("*"))
    return Outcome(case, wall, cpu, gb, process.returncode, text, len(left), escaped)


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


def show(outcomes: Sequence[Outcome], base: Outcome) -> bool:
    """Whether none fails."""
    console = Console(width=160)
    title = f"by file (healthy: {base.wall_s:.1f} s, {base.cpu_s:.1f} CPU s, {base.gb:.2f} GB)"
    table = Table("file", "cases", "refused", "most s", "most CPU s", "most GB", title=title)
    for kind in dict.fromkeys(one.case.kind for one in outcomes):
        of = [one for one in outcomes if one.case.kind == kind]
        most = (max(getattr(one, name) for one in of) for name in ("wall_s", "cpu_s", "gb"))
        table.add_row(kind, str(len(of)), str(sum(one.code != 0 for one in of)), *(f"{value:.1f}" for value in most))
    console.print(table)
    failed = {one: faults for one in outcomes if (faults := one.faults(base))}
    for one, faults in failed.items():
        end = one.output[-1000:]
        console.print(Text(f"FAILED {one.case.kind}, {one.case.name}: {'; '.join(faults)}\n{end}"))
    console.print(f"{len(outcomes)} cases, {len(failed)} failed")
    return not failed


def main() -> int:
    parts = sys.argv[1:] or [""]
    cases = [case for case in (*TEMPLATES, *FILES) if any(part in case.name for part in parts)]
    base = sorted((plan(HEALTHY) for _ in range(BASE)), key=lambda one: one.cpu_s)[BASE // 2]
    if faults := base.faults(base):
        sys.exit(f"the healthy plan fails: {faults}\n{base.output}")
    return not show([*map(plan, cases)], base)


if __name__ == "__main__":
    sys.exit(main())
