"""What Ray costs a training step: `python benchmarks/ray_overhead.py [RUNS]`.

The same run by plain processes and by Ray, in turn, with steps of about 200 ms; a run's figure is the time from its
first step to its last by the events' clock, so that waiting counts too. Ends with 1 where the median of the pairs'
ratios is above MOST.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from launcher.core.events import Step, events_of

MOST = 1.02
RLRUN = [sys.executable, "-m", "launcher"]
STEPS = 80
WORDS = [
    "algorithm=sft", "model=tiny", "model.hidden_size=256", "model.num_hidden_layers=4", "model.intermediate_size=512",
    "data=reverse", "data.train_batch_size=48", "data.n_val=0", "engine.num_threads=1",
    f"trainer.total_training_steps={STEPS}",
]  # fmt: skip


def ms_per_step(cluster: str, number: int) -> float:
    name = f"{cluster}-{number}"
    words = [*RLRUN, "train", *WORDS, f"cluster={cluster}", f"trainer.experiment_name={name}"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    told = [event.at for event in events_of(Path("runs/rlrun") / name / "events.jsonl") if isinstance(event, Step)]
    paces = [late - soon for soon, late in pairwise(told[5:])]
    return 1000 * median(paces)


def main(runs: int) -> int:
    table = Table("pair", "plain ms", "Ray ms", "ratio", title="a training step by plain processes and by Ray")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number in range(runs):
            order = ["local", "ray"] if number % 2 else ["ray", "local"]
            took = {cluster: ms_per_step(cluster, number) for cluster in order}
            ratios.append(took["ray"] / took["local"])
            table.add_row(str(number + 1), f"{took['local']:.1f}", f"{took['ray']:.1f}", f"{ratios[-1]:.3f}")
        os.chdir("/")
    Console().print(table, f"median of the ratios {median(ratios):.3f}, at most {MOST}")
    return 0 if median(ratios) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
