"""The e-mail agent with its figures: `python benchmarks/email_agent.py SEED...` trains each seed once by SFT, and from
there by credit for whole episodes (grpo), for turns (turn_grpo) and among equal states (gigpo). It ends with 1 if a
figure is outside its bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from demo import ROOT, cpu_seconds
from rich.console import Console
from rich.table import Table

from launcher.core.events import Step, events_of
from launcher.core.metrics import wilson

ALGORITHMS = ("grpo", "turn_grpo", "gigpo")
BEFORE, AFTER, CPU_S = 0.3, 0.7, 900
QUESTIONS = 128
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # quantiles of Student's t for so many seeds


def accuracies(name: str) -> list[float]:
    """Of every validation of a run, the share of the held-out questions that were answered right."""
    events = events_of(Path("runs/email-agent") / name / "events.jsonl")
    metrics = (event.metrics for event in events if isinstance(event, Step))
    return [found["eval/accuracy"] for found in metrics if "eval/accuracy" in found]


def train(algorithm: str, seed: str, name: str, sft: str) -> float:
    """CPU seconds of the recipe."""
    before = cpu_seconds()
    env = {**os.environ, "NAME": name, "ALGORITHM": algorithm, "SFT": sft}
    subprocess.run([str(ROOT / "recipes" / "email-agent.sh"), f"seed={seed}"], env=env, check=True)
    return cpu_seconds() - before


def shown(values: list[float]) -> str:
    """The mean over the seeds with its 95 % interval; of one seed, that of its questions."""
    if len(values) == 1:
        low, high = wilson(values[0], QUESTIONS)
    else:
        half = T95.get(len(values), 2.0) * stdev(values) / sqrt(len(values))
        low, high = max(fmean(values) - half, 0), min(fmean(values) + half, 1)
    return f"{fmean(values):.2f} [{low:.2f}–{high:.2f}]"


def main(seeds: list[str]) -> int:
    table = Table(
        "seed", "credit", "after SFT", "after RL", "CPU s", "", title=f"accuracy, {QUESTIONS} held-out questions"
    )
    found: dict[str, list[float]] = {algorithm: [] for algorithm in ALGORITHMS}
    bad = 0
    for seed in seeds:
        name, sft, sft_s = f"{seed}-{os.getpid()}", "", 0.0
        for algorithm in ALGORITHMS:
            spent = sft_s + train(algorithm, seed, name, sft)
            first, *_, last = accuracies(f"{algorithm}-{name}")
            if not sft:
                sft, sft_s = f"runs/email-agent/sft-{name}", spent_on(f"sft-{name}")
            good = first < BEFORE and last > AFTER and spent <= CPU_S
            bad += not good
            found[algorithm].append(last)
            row = seed, algorithm, shown([first]), shown([last]), f"{spent:.0f}", "pass" if good else "fail"
            table.add_row(*row)
    for algorithm, values in found.items():
        table.add_row("all", algorithm, "", shown(values), "", style="bold")
    table.add_row("required", "", f"< {BEFORE}", f"> {AFTER}", f"≤ {CPU_S}", style="dim")
    Console().print(table)
    return 1 if bad else 0


def spent_on(name: str) -> float:
    """CPU seconds of the steps of a run."""
    events = events_of(Path("runs/email-agent") / name / "events.jsonl")
    return sum(event.metrics.get("perf/cpu_s", 0.0) for event in events if isinstance(event, Step))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["0"]))
