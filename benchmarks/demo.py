"""The quickstart with its figures: `python benchmarks/demo.py SEED...` ends with 1 if one is outside its bounds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launcher.core.events import events_of
from launcher.core.state import RunState, fold

ROOT = Path(__file__).parents[1]
AFTER_SFT, AFTER_GRPO, CPU_S = (0.10, 0.45), 0.80, 300  # 56 to 165 were seen, as cores differ


def cpu_seconds() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def state_of(name: str) -> RunState:
    return fold(events_of(Path("runs/quickstart") / name / "events.jsonl"))


def accuracy(state: RunState) -> float:
    return state.validation["val-core/reverse/reward/mean@1"]


def main(seeds: list[str]) -> int:
    table = Table("seed", "after SFT", "after GRPO", "CPU s", "", title="held-out accuracy, 256 words, greedy")
    bad = 0
    for seed in seeds:
        name, before = f"{seed}-{os.getpid()}", cpu_seconds()
        quickstart = [str(ROOT / "recipes" / "quickstart.sh"), f"seed={seed}"]
        subprocess.run(quickstart, env={**os.environ, "NAME": name}, check=True)
        sft, grpo = accuracy(state_of(f"sft-{name}")), accuracy(state_of(f"grpo-{name}"))
        spent = cpu_seconds() - before
        good = AFTER_SFT[0] <= sft <= AFTER_SFT[1] and grpo >= AFTER_GRPO and spent <= CPU_S
        bad += not good
        table.add_row(seed, f"{sft:.2f}", f"{grpo:.2f}", f"{spent:.0f}", "pass" if good else "fail")
    low, high = AFTER_SFT
    table.add_row("required", f"{low:.2f}–{high:.2f}", f"≥ {AFTER_GRPO:.2f}", f"≤ {CPU_S}", style="dim")
    Console().print(table)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["0"]))
