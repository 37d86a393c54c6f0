"""Runs that are ruined in known ways, and healthy ones: what each says of itself.

`python benchmarks/ruined.py [--seeds 3] [--only NAME]` ends with 1 where a ruined run is not named before its end and
in its last line, with a command that works, or a healthy one is called ruined.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launcher.core.events import Alert, events_of
from launcher.core.state import fold

ROOT = Path(__file__).parents[1]
COMMON = "data=reverse engine.num_threads=1 trainer.test_freq=20 data.n_val=128"
SFT = (
    "algorithm=sft model=tiny optim.lr=3e-3 optim.lr_warmup_steps=10 data.train_batch_size=32"
    " trainer.micro_batch_size_per_gpu=32"
)
RL = (
    "model=hf model.path={base} sampler.n=8 optim.lr=5e-4 data.train_batch_size=16 trainer.micro_batch_size_per_gpu=128"
    " trainer.total_training_steps=60"
)
BASE = f"{SFT} trainer.total_training_steps=1000 trainer.test_freq=500"
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
    "sft: lr 5": (f"{SFT} optim.lr=5 trainer.total_training_steps=60", "the loss rose"),
    "sft: lr 1e-9": (f"{SFT} optim.lr=1e-9 trainer.total_training_steps=60", "did not move"),
    "sft: numbers overflow": (
        f"{SFT} optim.lr=1e38 trainer.max_bad_steps=1000 trainer.total_training_steps=60",
        "not finite",
    ),
    "sft: rate of full training for adapters": (
        f"{SFT} model.lora_rank=4 optim.lr=1e-7 trainer.total_training_steps=60",
        "did not move",
    ),
    "grpo: lr 3e-2": (f"algorithm=grpo {RL} optim.lr=3e-2", "worse than before training"),
    "grpo: lr 1e-10": (f"algorithm=grpo {RL} optim.lr=1e-10", "did not move"),
    "grpo: a model that knows nothing": (f"algorithm=grpo {RL} model=tiny model.path=", "had the same score"),
    "grpo: a reward that turns to 0 for all": (
        f"algorithm=grpo {RL} reward=python reward.path={{rewards}} reward.name=turns_to_0",
        "score of its own answers fell",
    ),
    "dpo: lr 1": (f"algorithm=dpo {RL} optim.lr=1", "worse than before training"),
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
HEALTHY: Mapping[str, str] = {
    "sft": f"{SFT} trainer.total_training_steps=200",
    "sft with adapters": f"{SFT} model.lora_rank=8 trainer.total_training_steps=200",
    "sft, cosine": f"{SFT} optim.lr_scheduler_type=cosine trainer.total_training_steps=200",
    "dpo": f"algorithm=dpo {RL} optim.lr=2e-4",
    "grpo": f"algorithm=grpo {RL}",
    "grpo, kl": f"algorithm=grpo {RL} algorithm.kl_loss_coef=0.01",
    "grpo, two updates": f"algorithm=grpo {RL} trainer.ppo_mini_batch_size=8",
    "dr_grpo": f"algorithm=dr_grpo {RL}",
    "gspo": f"algorithm=gspo {RL}",
    "dapo": f"algorithm=dapo {RL} algorithm.overlong_buffer_len=2",
    "ppo": f"algorithm=ppo {RL} critic.optim.lr=1e-3",
    "self-play": f"algorithm=gspo_selfplay {RL}",
}


@dataclass(frozen=True)
class Report:
    """What a run reports of itself."""

    alerts: Sequence[Alert]
    end: str
    scores: Sequence[str]
    """The first validation, the best and the last."""
    refused: str = ""
    """By the plan, so that nothing was started."""

    @property
    def next_command(self) -> list[str]:
        """What the last line says to type."""
        return shlex.split(self.end.partition("; next: rlrun ")[2])


def train(folder: Path, name: str, words: str) -> Report:
    typed = [*COMMON.split(), *words.split(), f"trainer.run_root={folder}", f"trainer.experiment_name={name}"]
    by_key = {word.partition("=")[0]: word for word in typed}  # a later word wins
    done = rlrun(folder, "train", *(word for word in by_key.values() if not word.endswith("=")))
    events = list(events_of(folder / "rlrun" / name / "events.jsonl"))
    if not events:
        return Report([], "", [], done.stderr.strip() or "no events")
    state = fold(events)
    scores = [each.shown for each in (state.first, state.best, state.last) if each]
    alerts = [event for event in events if isinstance(event, Alert)]
    return Report(alerts, (folder / "rlrun" / name / "console.log").read_text().splitlines()[-1], scores)


def rlrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def fault(report: Report, folder: Path, words: str | None) -> str:
    """What is wrong with a report, of a run that is ruined or, where `words` is None, healthy; empty if nothing."""
    named = [alert for alert in report.alerts if ";" in alert.text]
    if words is None:
        return "" if not (named or report.refused) and report.end == "finished" else "is called ruined"
    if words not in (report.refused or report.end):
        return f"does not say {words!r}"
    if report.refused:  # before it starts is best
        return ""
    if not named or report.end == "finished":
        return "is not named"
    if not report.next_command:
        return "" if report.end.startswith("failed") else "has no next command"
    typed = rlrun(folder, *report.next_command, *(["--dry-run"] if report.next_command[0] == "rerun" else []))
    return f"{' '.join(report.next_command)}: {typed.stderr}" if typed.returncode else ""


def main(arguments: argparse.Namespace) -> int:
    table, bad, count = Table("seed", "run", "held out: first, best, last", "named at step", "last line", ""), 0, 0
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(arguments.seeds):
            folder = Path(temp) / str(seed)
            folder.mkdir()
            (folder / "rewards.py").write_text(REWARDS)
            train(folder, "base", f"{BASE} seed={seed}")
            places = {"base": f"{folder}/rlrun/base", "rewards": f"{folder}/rewards.py"}
            cases: dict[str, tuple[str, str | None]] = {**RUINED}
            cases |= {name: (words, None) for name, words in HEALTHY.items() if seed == 0}
            for number, (name, (words, expected)) in enumerate(cases.items()):
                if arguments.only and not re.search(arguments.only, name):
                    continue
                report = train(folder, f"run-{number}", f"{words.format(**places)} seed={seed}")
                wrong = fault(report, folder, expected)
                count, bad = count + 1, bad + bool(wrong)
                steps = ", ".join(str(alert.step) for alert in report.alerts if ";" in alert.text)
                row = (str(seed), name, ", ".join(report.scores), steps, report.refused or report.end, wrong or "pass")
                table.add_row(*map(escape, row))
                print(*row, sep=" | ", flush=True)
    Console(width=200, emoji=False).print(table)
    print(f"{count - bad} of {count} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    sys.exit(main(parser.parse_args()))
