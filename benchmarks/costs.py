"""What starting and training cost, in pairs with another version: `python benchmarks/costs.py RUNS FOLDER`.

Each command is run by the version in FOLDER and by this one, which begins every second pair; the last columns are the
median and the range of the ratios of such pairs. The first pair is left out. `make bench BASE=<commit>` does this.
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
ANSWERS, NO_ANSWERS = "trainer.log_groups_freq=1", "trainer.log_groups=0"
ALONE = ["trainer.total_training_steps=60", "trainer.test_freq=-1", "trainer.save_freq=-1"]
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
    """Wall seconds of a step of training with all that is written after it, without the first ten steps."""
    run = uuid.uuid4().hex
    rlrun(version, ["train", *words, *ALONE, f"trainer.experiment_name={run}"])
    lines = (Path("runs/rlrun") / run / "events.jsonl").read_text().splitlines()
    ends = [event["at"] for event in map(json.loads, lines) if event["kind"] == "Step"][9:]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def main(runs: int, base: str) -> int:
    table = Table("what", "before", "now", "ratio", "range", title=f"CPU s of commands, wall s of steps; {runs} pairs")
    old, new = Path(base).resolve(), ROOT
    cases = [(f"rlrun {name}", command_seconds, (old, words), (new, words)) for name, words in COMMANDS.items()]
    cases += [(f"a step of {name}", step_seconds, (old, words), (new, words)) for name, words in STEPS.items()]
    logged, silent = (new, [*BATCH, ANSWERS]), (new, [*BATCH, NO_ANSWERS])
    cases.append(("a step of GRPO that logs answers, against one that does not", step_seconds, silent, logged))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path(LOG).write_text("".join(LINE.format(n, 0.9 - n / 200, 0.2 + n / 100) for n in range(1, 41)))
        for name, measure, *both in cases:
            pairs = []
            for number in range(runs + 1):
                order = (0, 1) if number % 2 else (1, 0)
                spent = {which: measure(*both[which]) for which in order}
                pairs.append((spent[0], spent[1]))
            before, now = (statistics.median(values) for values in zip(*pairs[1:], strict=True))
            ratios = sorted(second / first for first, second in pairs[1:])
            span = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
            table.add_row(name, f"{before:.3f}", f"{now:.3f}", f"{statistics.median(ratios):.2f}", span)
        os.chdir("/")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
