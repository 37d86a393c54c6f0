"""CPU time that the launcher spends on a step of 40 metrics: the event log, console.log, the state, health rules, and a
tracker's process: `step_overhead.py [STEPS]`. Ends with 1 where it is more than BOUND_MS.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from launcher.config.resolve import resolve
from launcher.core.events import Loaded, Started, Step
from launcher.launch.follow import Follower
from launcher.runs.folder import Folder
from launcher.spec.health import HealthSettings
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_yaml

BOUND_MS = 1.0
ROUNDS = 5
NAMES = [
    "training/global_step", "training/epoch", "critic/score/mean", "critic/score/max", "critic/score/min",
    "critic/rewards/mean", "critic/rewards/max", "critic/rewards/min", "critic/rewards/std", "critic/advantages/mean",
    "critic/advantages/max", "critic/advantages/min", "critic/frac_reward_zero_std", "response_length/mean",
    "response_length/max", "response_length/min", "response_length/clip_ratio", "prompt_length/mean",
    "prompt_length/clip_ratio", "actor/entropy", "actor/pg_loss", "actor/kl_loss", "actor/pg_clipfrac", "actor/ppo_kl",
    "actor/ratio_mean", "actor/ratio_max", "actor/log_ratio_max", "actor/grad_norm", "actor/lr", "train/loss_tokens",
    "perf/max_memory_allocated_gb", "perf/cpu_memory_used_gb", "perf/total_num_tokens", "perf/throughput",
    "timing_s/gen", "timing_s/reward", "timing_s/old_log_prob", "timing_s/adv", "timing_s/update_actor",
    "timing_s/step",
]  # fmt: skip


def steps_of(count: int) -> list[Step]:
    chance = random.Random(0)
    return [
        Step(step=step, metrics={name: 0.5 + 0.05 * chance.random() for name in NAMES}) for step in range(1, count + 1)
    ]


def cost_ms(run: RunSpec, steps: list[Step], path: Path) -> float:
    """CPU milliseconds a step of the process that writes the run's logs."""
    path.mkdir(parents=True)
    Folder(path).spec.write_text(to_yaml(run))
    follower = Follower(run, Folder(path), [], 1)
    follower.tell([
        Started(run="project/run", algorithm="grpo", processes=1),
        Loaded(rows=64, refused=0, val_rows=0, val_refused=0, steps_per_epoch=4, steps=len(steps)),
    ])  # fmt: skip
    begin = time.process_time()
    for step in steps:
        follower.tell([step])
    took = time.process_time() - begin
    follower.close()
    return 1000 * took / len(steps)


def tracker_ms(path: Path, steps: int) -> float:
    """CPU milliseconds a step of `rlrun track --to file`, a process of its own, without what its start costs."""
    command = [sys.executable, "-m", "launcher", "track", str(path), "--to", "file"]
    begin = time.process_time() + _children_s()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.process_time() + _children_s() - begin
    begin = time.process_time() + _children_s()
    subprocess.run(command, check=True, capture_output=True)  # all has been sent
    return 1000 * max(whole - (time.process_time() + _children_s() - begin), 0.0) / steps


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    run = resolve(["algorithm=grpo", "model=tiny", "data=reverse", "sampler.n=8"])
    without, steps = replace(run, health=HealthSettings(profile=None)), steps_of(count)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            (cost_ms(without, steps, Path(folder) / f"without_{n}"), cost_ms(run, steps, Path(folder) / f"run_{n}"))
            for n in range(ROUNDS)
        ]
        sent = tracker_ms(Path(folder) / "run_0", count)
    logs, whole = (median(each) for each in zip(*pairs, strict=True))
    table = Table("CPU ms a step of 40 metrics", f"median of {ROUNDS}", box=None)
    for name, cost in (
        ("events, console.log, state, rules with settings", logs),
        ("rules of health=measured", whole - logs),
        ("a tracker, in its own process", sent),
        ("all", whole + sent),
    ):
        table.add_row(name, f"{cost:.2f}")
    Console().print(table)
    return 1 if whole + sent > BOUND_MS else 0


if __name__ == "__main__":
    sys.exit(main())
