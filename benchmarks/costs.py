"""What starting and training cost, in CPU seconds: `python benchmarks/costs.py RUNS`. Medians."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from demo import cpu_seconds
from rich.console import Console
from rich.table import Table

from launcher.core.events import Step, events_of

RLRUN = [sys.executable, "-m", "launcher"]
TINY = ["model=tiny", "data=reverse", "engine.num_threads=1", "trainer.val_before_train=false"]
GRPO = ["algorithm=grpo", *TINY, "sampler.n=8", "optim.lr=1e-4"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "rlrun --help": [*RLRUN, "--help"],
    "rlrun plan": [*RLRUN, "plan", *GRPO],
    "rlrun train, to the end of step 1": [*RLRUN, "train", *GRPO, "trainer.total_training_steps=1"],
}
STEPS = {
    "SFT, 32 rows": ["algorithm=sft", *TINY, "data.train_batch_size=32", "trainer.micro_batch_size_per_gpu=32"],
    "GRPO, 16 prompts x 8 answers": [*GRPO, "trainer.micro_batch_size_per_gpu=128"],
}


def seconds_of(command: list[str]) -> float:
    before = cpu_seconds()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return cpu_seconds() - before


def step_seconds(words: list[str], number: int) -> tuple[float, float]:
    """Median seconds of a step and tokens a second, the first steps left out."""
    name = f"costs-{number}"
    more = ["trainer.total_training_steps=60", f"trainer.experiment_name={name}"]
    subprocess.run([*RLRUN, "train", *words, *more], check=True, stdout=subprocess.DEVNULL)
    log = Path("runs/rlrun") / name / "events.jsonl"
    steps = [event.metrics for event in events_of(log) if isinstance(event, Step)]
    seconds = statistics.median(step["timing_s/step"] for step in steps[10:])
    return seconds, statistics.median(step["perf/throughput"] for step in steps[10:])


def main(runs: int) -> int:
    starting = Table("command", "CPU s", "range", title=f"starting: medians of {runs} runs")
    training = Table("step", "ms", "tokens/s", title="training, hidden 64 x 2 layers, one thread, wall time")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in COMMANDS.items():
            spent = [seconds_of(command) for _ in range(runs + 1)][1:]
            starting.add_row(name, f"{statistics.median(spent):.2f}", f"{min(spent):.2f}–{max(spent):.2f}")
        for number, (name, words) in enumerate(STEPS.items()):
            seconds, speed = step_seconds(words, number)
            training.add_row(name, f"{seconds * 1000:.1f}", f"{speed:,.0f}")
        os.chdir("/")
    Console().print(starting, training)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
