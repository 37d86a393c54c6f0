"""What starting and training cost, in pairs with another version: `python benchmarks/costs.py RUNS FOLDER`.

Each command is run by the version in FOLDER and by this one in turn; the last column is the median of the ratios of
such pairs. The first pair is left out. `make bench BASE=<commit>` does this.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from demo import ROOT, cpu_seconds
from rich.console import Console
from rich.table import Table

TINY = ["model=tiny", "data=reverse", "engine.num_threads=1", "trainer.val_before_train=false"]
GRPO = ["algorithm=grpo", *TINY, "sampler.n=8", "optim.lr=1e-4"]
BATCH = [*GRPO, "trainer.micro_batch_size_per_gpu=128"]
NO_ANSWERS = "trainer.log_groups=0"
LOG = "verl.log"
LINE = "step:{0} - actor/entropy:{1} - actor/grad_norm:0.3{0} - actor/pg_loss:0.01{0} - critic/score/mean:{2}\n"
COMMANDS = {
    "--help": ["--help"],
    "plan": ["plan", *GRPO],
    "diagnose, a log of 40 steps": ["diagnose", LOG],
    "train, to the end of step 1": ["train", *GRPO, "trainer.total_training_steps=1"],
}
STEPS = {
    "SFT, 32 rows": ["algorithm=sft", *TINY, "data.train_batch_size=32", "trainer.micro_batch_size_per_gpu=32"],
    "GRPO, 16 prompts x 8 answers": BATCH,
}


def rlrun(version: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "launcher", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(version)})


def command_seconds(version: Path, words: list[str]) -> float:
    """CPU seconds of a command with all its processes."""
    before = cpu_seconds()
    rlrun(version, words)
    return cpu_seconds() - before


def step_seconds(version: Path, words: list[str]) -> float:
    """Mean seconds of a step of training, the first ten left out; about every second one logs its answers."""
    run = uuid.uuid4().hex
    rlrun(version, ["train", *words, "trainer.total_training_steps=60", f"trainer.experiment_name={run}"])
    lines = (Path("runs/rlrun") / run / "events.jsonl").read_text().splitlines()
    steps = [event["metrics"]["timing_s/step"] for event in map(json.loads, lines) if event["kind"] == "Step"]
    return statistics.fmean(steps[10:])


def main(runs: int, base: str) -> int:
    table = Table("what", "before", "now", "ratio", title=f"CPU s of rlrun, s of a step; medians of {runs} pairs")
    old, new = Path(base).resolve(), ROOT
    cases = [(f"rlrun {name}", command_seconds, (old, words), (new, words)) for name, words in COMMANDS.items()]
    cases += [(f"a step of {name}", step_seconds, (old, words), (new, words)) for name, words in STEPS.items()]
    cases.append(
        ("the same, no answers logged (before) and logged", step_seconds, (new, [*BATCH, NO_ANSWERS]), (new, BATCH))
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path(LOG).write_text("".join(LINE.format(n, 0.9 - n / 200, 0.2 + n / 100) for n in range(1, 41)))
        for name, measure, *both in cases:
            pairs = [[measure(*one) for one in both] for _ in range(runs + 1)][1:]
            before, now = (statistics.median(values) for values in zip(*pairs, strict=True))
            ratio = statistics.median(second / first for first, second in pairs)
            table.add_row(name, f"{before:.3f}", f"{now:.3f}", f"{ratio:.2f}")
        os.chdir("/")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
