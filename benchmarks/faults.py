"""Runs of our own engine with faults put in at a known step, and healthy ones: what the health rules find, and when.

`python benchmarks/faults.py [--seeds 1] [--only NAME]` ends with 1 where a fault has no critical alert within 20 steps
of its first effect, or a healthy run has one. The faulty parts are in `benchmarks/faulty/`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, Loaded, Step, events_of

ROOT = Path(__file__).parents[1]
LATEST = 20  # steps after the effect
COMMON = (
    "data=reverse model=tiny engine.num_threads=1 data.n_val=128 trainer.test_freq=10 trainer.save_freq=-1"
    " trainer.micro_batch_size_per_gpu=128"
)
SFT = "algorithm=sft optim.lr=3e-3 optim.lr_warmup_steps=10 data.train_batch_size=32"
BASE = f"{SFT} trainer.total_training_steps=1000 trainer.test_freq=500 trainer.save_freq=1000"
RL = "model=hf model.path={base} sampler.n=8 optim.lr=5e-4 data.train_batch_size=16 trainer.total_training_steps=80"
FAULTS: Mapping[str, tuple[str, int]] = {
    "cold start": (f"algorithm=grpo {RL} model=tiny model.path=", 1),
    "reward always 0": (f"algorithm=grpo {RL} reward=faulty reward.fault=zero", 1),
    "learning rate x66": (f"algorithm=grpo {RL} optim.lr=3.3e-2", 1),
    "reward is the length": (f"algorithm=grpo {RL} reward=faulty reward.fault=length", 1),
    "bonus for length": (f"algorithm=grpo {RL} reward=faulty reward.fault=bonus", 1),
    "reward flipped": (f"algorithm=faulty {RL} reward=faulty reward.fault=flipped reward.from_step=40", 40),
    "one NaN in the gradient": (f"algorithm=faulty {RL} algorithm.fault=nan_gradient algorithm.at_step=40", 40),
    "gradient x0": (f"algorithm=faulty {RL} algorithm.fault=frozen", 1),
    "no clip": (
        f"algorithm=grpo {RL} optim.lr=3e-3 trainer.ppo_epochs=4 trainer.ppo_mini_batch_size=4"
        " algorithm.clip_ratio_low=0.999999 algorithm.clip_ratio_high=1e9",
        1,
    ),
    "sampler at temperature 0.6": (f"algorithm=grpo {RL} sampler=other_temperature", 1),
    "old log-probabilities at temperature 0.6": (
        f"algorithm=faulty {RL} algorithm.fault=old_of_sampler sampler=other_temperature"
        " sampler.samples_with_it=false trainer.ppo_epochs=2",
        1,
    ),
    "sampler with old weights": (f"algorithm=grpo {RL} sampler=old_weights sampler.from_step=30", 30),
}
"""Arguments, and the first step at which the fault has an effect."""
HEALTHY: Mapping[str, str] = {
    "sft": f"{SFT} trainer.total_training_steps=100",
    "dpo": f"algorithm=dpo {RL} optim.lr=2e-4 sampler.n=",
    "grpo": f"algorithm=grpo {RL}",
    "grpo, kl, four updates": (
        f"algorithm=grpo {RL} algorithm.kl_loss_coef=0.01 trainer.ppo_epochs=2 trainer.ppo_mini_batch_size=8"
    ),
    "grpo, small batch": f"algorithm=grpo {RL} data.train_batch_size=4 optim.lr=2e-4",
    "grpo, two processes": f"algorithm=grpo {RL} hardware.nproc_per_node=2 trainer.micro_batch_size_per_gpu=64",
    "dr_grpo": f"algorithm=dr_grpo {RL}",
    "gspo, two updates": f"algorithm=gspo {RL} trainer.ppo_mini_batch_size=8",
    "dapo": f"algorithm=dapo {RL} algorithm.overlong_buffer_len=2",
    "ppo, two epochs": f"algorithm=ppo {RL} critic.optim.lr=1e-3 trainer.ppo_epochs=2",
}


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    alerts: list[Alert]
    steps: int
    held_out: list[float]
    end: str

    @property
    def critical(self) -> list[Alert]:
        return [alert for alert in self.alerts if alert.level == "critical"]


def train(folder: Path, name: str, words: str) -> Outcome:
    typed = [*COMMON.split(), *words.split(), f"trainer.run_root={folder}", f"trainer.experiment_name={name}"]
    by_key = {word.partition("=")[0]: word for word in typed}  # a later word wins
    command = [sys.executable, "-m", "launcher", "train", "--config-dir", str(ROOT / "benchmarks" / "faulty")]
    command += [word for word in by_key.values() if not word.endswith("=")]
    shutil.rmtree(folder / "rlrun" / name, ignore_errors=True)  # of an earlier call with --keep
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    events = list(events_of(folder / "rlrun" / name / "events.jsonl"))
    if not any(isinstance(event, Loaded) for event in events):
        raise SystemExit(f"{name}: {' '.join(command)} did not train:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    steps = [event for event in events if isinstance(event, Step)]
    held_out = [
        value for step in steps for key, value in step.metrics.items() if key == "val-core/reverse/reward/mean@1"
    ]
    end = (folder / "rlrun" / name / "console.log").read_text().splitlines()[-1]
    return Outcome([e for e in events if isinstance(e, Alert)], max((s.step for s in steps), default=0), held_out, end)


def row(name: str, outcome: Outcome, effect: int | None) -> tuple[list[str], bool]:
    """The table's row of a run, and whether it passes; `effect` is None for a healthy run."""
    scores = outcome.held_out
    held_out = f"{scores[0]:.2f}, {max(scores):.2f}, {scores[-1]:.2f}" if scores else ""
    critical = outcome.critical
    warned = sorted({f"{alert.rule or 'engine'} @{alert.step}" for alert in outcome.alerts if alert.level == "warn"})
    first = next((alert for alert in critical if effect is None or alert.step >= effect), None)
    early = effect is not None and any(alert.step < effect for alert in critical)
    delay = "" if effect is None or first is None else str(first.step - effect)
    good = not critical if effect is None else first is not None and int(delay) <= LATEST and not early
    cells = [name, str(effect or ""), held_out, str(first.step) if first else "", first.rule if first else "", delay]
    return [*cells, ", ".join(warned), "pass" if good else "FAIL"], good


def main(arguments: argparse.Namespace) -> int:
    table = Table(
        "seed", "run", "effect", "held out: first, best, last", "critical at", "rule", "delay", "warnings", ""
    )
    count, bad = 0, 0
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            folder = Path(arguments.keep or temp) / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "rlrun" / "base").exists():
                train(folder, "base", f"{BASE} seed={seed}")
            cases: dict[str, tuple[str, int | None]] = {**FAULTS}
            cases |= {name: (words, None) for name, words in HEALTHY.items()}
            for number, (name, (words, effect)) in enumerate(cases.items()):
                if arguments.only and not re.search(arguments.only, name):
                    continue
                words = words.format(base=folder / "rlrun" / "base")
                outcome = train(folder, f"run-{number}", f"{words} seed={seed}")
                cells, good = row(name, outcome, effect)
                count, bad = count + 1, bad + (not good)
                table.add_row(*map(escape, [str(seed), *cells]))
                print(seed, *cells, sep=" | ", flush=True)
    Console(width=200, emoji=False).print(table)
    print(f"{count - bad} of {count} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--keep", default="", help="a folder in which the runs stay")
    sys.exit(main(parser.parse_args()))
