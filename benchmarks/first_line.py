"""How soon something is seen: `first_line.py RUNS`.

Milliseconds from starting `rlrun plan` and `rlrun train` to the first byte, the median of RUNS; and seconds until a
reward that sleeps, for ever or for one row, is named with its row, beside its time limit. Ends with 1 above LIMITS.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

RLRUN = [sys.executable, "-m", "launcher"]
LIMIT_S, FIRST_MS, TIMES = 4.0, 300.0, 2.0
ROWS = "question,answer\n" + "".join(f"{n}+{n}=,{2 * n}\n" for n in range(1, 41))
REWARD = """import time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if {when}:
        time.sleep(1e6)
    return float(ground_truth in solution_str)
"""
SLEEPS = {
    "plan, for ever": ("plan", "True", r"row rows.csv:\d+, for|took longer"),
    "plan, for one row": ("plan", "ground_truth == '56'", r"rows.csv:29"),
    "train, for ever": ("train", "len(solution_str) > 4", r"row \S*rows.csv:\d+, for|took longer"),
}
"""Command, when the reward sleeps, and what names it."""
WORDS = ["algorithm=grpo", "model=tiny", "data=rows.csv", "trainer.total_training_steps=1", "sampler.n=2"]


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [*RLRUN, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    )


def first_byte_ms(folder: Path, command: str) -> float:
    begin = time.perf_counter()
    process = start(folder, command, "algorithm=sft")
    assert process.stdout
    process.stdout.read(1)
    taken = time.perf_counter() - begin
    process.kill()
    process.wait()
    return 1000 * taken


def named_s(folder: Path, command: str, when: str, pattern: str) -> float:
    """Seconds from the start of the reward's trial, or of training, until a line names it."""
    (folder / "slow.py").write_text(REWARD.format(when=when))
    begin, lines = time.monotonic(), list[str]()
    process = start(folder, command, *WORDS, "reward=slow.py", f"reward.timeout_s={LIMIT_S:g}", "reward.form=")
    assert process.stdout
    for line in process.stdout:
        lines.append(line.decode())
        if re.search(pattern, lines[-1]):
            break
        if lines[-1].startswith(("trying the reward", "data: ")):
            begin = time.monotonic()
    else:
        raise SystemExit(f"{command}: nothing names it:\n{''.join(lines)}")
    process.kill()
    process.wait()
    return time.monotonic() - begin


def main() -> int:
    runs, bad = int(sys.argv[1]) if len(sys.argv) > 1 else 5, 0
    table = Table("what", "figure", "limit", box=None)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rows.csv").write_text(ROWS)
        for command in ("plan", "train"):
            taken = statistics.median(first_byte_ms(folder, command) for _ in range(runs))
            bad += taken > FIRST_MS
            table.add_row(f"first line of {command}", f"{taken:.0f} ms", f"{FIRST_MS:.0f} ms")
        for name, (command, when, pattern) in SLEEPS.items():
            seconds = named_s(folder, command, when, pattern)
            bad += seconds > TIMES * LIMIT_S
            table.add_row(f"a reward that sleeps: {name}", f"{seconds:.1f} s", f"{TIMES * LIMIT_S:.0f} s")
    Console().print(table)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
