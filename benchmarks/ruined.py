"""Runs that are ruined in known ways or have a fault put in, and healthy ones: what each says of itself.

`ruined.py [--faults] [--seeds 1] [--only NAME]`. Without `--faults`: a ruined run has to be
named before its end and in its last line, with a command that works, and a healthy one may not. With `--faults`: a
fault (its parts are in `benchmarks/faulty/`) needs a critical alert within `LATEST` steps of its first effect, and a
healthy run may have none.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, Ended, events_of

ROOT = Path(__file__).parents[1]
LATEST = 20  # steps after the effect
COMMON = "data=reverse engine.num_threads=1 data.n_val=128 trainer.save_freq=-1"
SFT = "algorithm=sft model=tiny optim.lr=3e-3 optim.lr_warmup_steps=10 data.train_batch_size=32"
BASE = f"{SFT} trainer.total_training_steps=1000 trainer.test_freq=500 trainer.save_freq=1000"
RL = (
    "model=hf model.path={base} sampler.n=8 optim.lr=5e-4 data.train_batch_size=16 trainer.micro_batch_size_per_gpu=128"
)
SHORT = f"{SFT} trainer.total_training_steps=60"
REWARDS = """
calls = 0

def turns_to_0(data_source, solution_str, ground_truth, extra_info=None):
    global calls
    calls += 1
    return float(calls < 3000 and solution_str.strip() == ground_truth)

def missing(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.strip() == ground_truth else 0.0 if len(solution_str) < 4 else None
"""
RUINED: Mapping[str, tuple[str, str]] = {
    "sft: lr 5": (f"{SHORT} optim.lr=5", "the loss rose"),
    "sft: lr 1e-9": (f"{SHORT} optim.lr=1e-9", "did not move"),
    "sft: numbers overflow": (f"{SHORT} optim.lr=1e38 trainer.max_bad_steps=1000", "not finite"),
    "sft: rate of full training for adapters": (f"{SHORT} model.lora_rank=4 optim.lr=1e-7", "did not move"),
    "grpo: lr 3e-2": (f"algorithm=grpo {RL} optim.lr=3e-2", "harmed: held-out score"),
    "grpo: lr 1e-10": (f"algorithm=grpo {RL} optim.lr=1e-10", "did not move"),
    "grpo: a model that knows nothing": (f"algorithm=grpo {RL} model=tiny model.path=", "had the same score"),
    "grpo: a reward that turns to 0 for all": (
        f"algorithm=grpo {RL} reward=python reward.path={{rewards}} reward.name=turns_to_0",
        "score of its own answers fell",
    ),
    "dpo: lr 1": (f"algorithm=dpo {RL} optim.lr=1", "harmed: held-out score"),
    "grpo: three of four answers have no score": (
        f"algorithm=grpo {RL} reward=python reward.path={{rewards}} reward.name=missing",
        "could be scored",
    ),
    "dapo: no group is kept": (
        f"algorithm=dapo {RL} algorithm.min_group_std=0.9 algorithm.overlong_buffer_len=1",
        "min_group_std",
    ),
    "grpo: answers of one token": (f"algorithm=grpo {RL} data.max_response_length=2", "were cut"),
}
"""Arguments, and what the last line, or a plan that refuses it, has to say."""
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
    "sft": f"{SFT} trainer.total_training_steps=200",
    "sft with adapters": f"{SFT} model.lora_rank=8 trainer.total_training_steps=200",
    "sft, cosine": f"{SFT} optim.lr_scheduler_type=cosine trainer.total_training_steps=200",
    "dpo": f"algorithm=dpo {RL} optim.lr=2e-5 sampler.n=",
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
    "self-play": f"algorithm=gspo_selfplay {RL}",
}


@dataclass
class Outcome:
    """What a run says of itself."""

    alerts: list[Alert] = field(default_factory=list)
    end: str = ""
    following: tuple[str, ...] = ()
    refused: str = ""
    """By the plan, so that nothing was started."""

    @property
    def named(self) -> list[Alert]:
        return [alert for alert in self.alerts if ";" in alert.text]


def rlrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def train(folder: Path, name: str, words: str) -> Outcome:
    typed = [*COMMON.split(), *words.split(), f"trainer.run_root={folder}", f"trainer.experiment_name={name}"]
    by_key = {word.partition("=")[0]: word for word in typed}  # a later word wins
    given = [word for word in by_key.values() if not word.endswith("=")]
    done = rlrun(folder, "train", "--config-dir", str(ROOT / "benchmarks" / "faulty"), *given)
    events = list(events_of(folder / "rlrun" / name / "events.jsonl"))
    ended = [event for event in events if isinstance(event, Ended)]
    if not ended:
        return Outcome(refused=done.stderr.strip() or "no events")
    alerts = [event for event in events if isinstance(event, Alert)]
    how, why, verdict = ended[-1].how, ended[-1].why, ended[-1].verdict
    end = f"{how}: {verdict.line if verdict else ''}; {why}" if why else how
    return Outcome(alerts, end, ended[-1].following)


def fault_of_ruined(outcome: Outcome, folder: Path, name: str, words: str | None) -> str:
    """What is wrong with what a run says that is ruined or, where `words` is None, healthy; empty if nothing."""
    if words is None:
        return "" if not (outcome.named or outcome.refused) and outcome.end == "finished" else "is called ruined"
    if words not in (outcome.refused or outcome.end):
        return f"does not say {words!r}"
    if outcome.refused:  # before it starts is best
        return ""
    if not outcome.named or outcome.end == "finished":
        return "is not named"
    if not outcome.following:
        return "" if outcome.end.startswith("failed") else "has no next command"
    command = [outcome.following[0], str(folder / "rlrun" / name), *outcome.following[1:]]
    typed = rlrun(folder, *command, *(["--dry-run"] if command[0] == "rerun" else []))
    return f"{shlex.join(command)}: {typed.stderr}" if typed.returncode else ""


def fault_of_alerts(outcome: Outcome, effect: int | None) -> str:
    critical = [alert.step for alert in outcome.alerts if alert.level == "critical"]
    if outcome.refused or effect is None:
        return outcome.refused or ("critical" if critical else "")
    if not critical or min(critical) < effect:
        return "before its effect" if critical else "missed"
    return "late" if min(critical) - effect > LATEST else ""


def rows(given: argparse.Namespace, folder: Path, seed: int) -> Iterator[tuple[str, str, str, str, str]]:
    """Seed, name, findings and last line of each run, and what is wrong with them."""
    folder.mkdir()
    (folder / "rewards.py").write_text(REWARDS)
    train(folder, "base", f"{BASE} seed={seed}")
    places = {"base": f"{folder}/rlrun/base", "rewards": f"{folder}/rewards.py"}
    steps = f"trainer.total_training_steps={80 if given.faults else 60} trainer.test_freq={10 if given.faults else 20}"
    cases: dict[str, tuple[str, int | str | None]] = {**(FAULTS if given.faults else RUINED)}
    cases |= {name: (words, None) for name, words in HEALTHY.items()}
    chosen = {name: case for name, case in cases.items() if re.search(given.only, name)}
    for number, (name, (words, expected)) in enumerate(chosen.items()):
        run = f"run-{number}"
        outcome = train(folder, run, f"{steps} {words.format(**places)} seed={seed}")
        if isinstance(expected, int) or (expected is None and given.faults):
            wrong = fault_of_alerts(outcome, expected)
        else:
            wrong = fault_of_ruined(outcome, folder, run, expected)
        found = ", ".join(f"{alert.rule or 'engine'} {alert.step}" for alert in outcome.named)
        yield str(seed), name, found, outcome.refused or outcome.end, wrong or "pass"


def main(given: argparse.Namespace) -> int:
    table, bad = Table("seed", "run", "alerts", "last line", ""), 0
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(given.seeds):
            for row in rows(given, Path(temp, str(seed)), seed):
                bad += row[-1] != "pass"
                table.add_row(*map(escape, row))
                print(*row, sep=" | ", flush=True)
    Console(width=200, emoji=False).print(table)
    print(f"{table.row_count - bad} of {table.row_count} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression of names")
    sys.exit(main(parser.parse_args()))
