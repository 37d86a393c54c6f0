"""Runs that are ruined in known ways or have a fault put in, runs that cannot learn, and healthy ones: what each says.

`ruined.py ruined|faults|ends [--seeds 1] [--only NAME]`.
ruined: a ruined run has to be named before its end and in its last line, with a command that works, and a healthy one
may not.
faults (their parts are in `benchmarks/faulty/`): each needs a critical alert within `LATEST` steps of its first effect,
and a healthy run may have none.
ends: a run that cannot learn has to end with "not learned" or "harmed" and the cause, one that does with "learned"; the
same line has to stand in `status`, `runs`, `diagnose` and console.log.
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
from launcher.core.verdict import RunVerdict

ROOT = Path(__file__).parents[1]
LATEST = 20  # steps after the effect
NO_VERDICT = RunVerdict("cannot tell", "there is no line")
LETTERS = "abcdefghij"
COMMON = "data=reverse engine.num_threads=1 data.n_val=128 trainer.save_freq=-1"
SFT = "algorithm=sft model=tiny optim.lr=3e-3 optim.lr_warmup_steps=10 data.train_batch_size=32"
BASE = f"{SFT} trainer.total_training_steps=1000 trainer.test_freq=500 trainer.save_freq=1000"
RL = (
    "model=hf model.path={base} sampler.n=8 optim.lr=5e-4 data.train_batch_size=16 trainer.micro_batch_size_per_gpu=128"
)
SHORT = f"{SFT} trainer.total_training_steps=60"
GRPO = f"algorithm=grpo {RL}"
ROWS = "data=files data.n_val= data.train_files={folder}/%s.jsonl data.val_files={folder}/held-out.jsonl"
OWN = f"algorithm=sft model=tiny data.train_batch_size=16 {ROWS}"
OF_FILES = f"{OWN} model=hf model.path={{base}} optim.lr=1e-3"
PAIRS = f"algorithm=dpo model=hf model.path={{base}} optim.lr=2e-4 data.train_batch_size=16 {ROWS}".replace(
    "held-out", "held-out-pairs"
)
REWARD = "reward=python reward.path={folder}/rewards.py reward.name="
STEPS = {
    "ruined": "trainer.total_training_steps=60 trainer.test_freq=20",
    "faults": "trainer.total_training_steps=80 trainer.test_freq=10",
    "ends": "trainer.total_training_steps=60 trainer.test_freq=20 data.n_val=256",
}
REWARDS = """
import random

calls = 0

def turns_to_0(data_source, solution_str, ground_truth, extra_info=None):
    global calls
    calls += 1
    return float(calls < 3000 and solution_str.strip() == ground_truth)

def missing(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.strip() == ground_truth else 0.0 if len(solution_str) < 4 else None

def constant(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5

def chance(data_source, solution_str, ground_truth, extra_info=None):
    return float(random.random() < 0.5)
"""
RUINED: Mapping[str, tuple[str, str]] = {
    "sft: lr 5": (f"{SHORT} optim.lr=5", "the loss rose"),
    "sft: lr 1e-9": (f"{SHORT} optim.lr=1e-9", "did not move"),
    "sft: numbers overflow": (f"{SHORT} optim.lr=1e38 trainer.max_bad_steps=1000", "not finite"),
    "sft: rate of full training for adapters": (f"{SHORT} model.lora_rank=4 optim.lr=1e-7", "did not move"),
    "grpo: lr 3e-2": (f"{GRPO} optim.lr=3e-2", "harmed: held-out score"),
    "grpo: lr 1e-10": (f"{GRPO} optim.lr=1e-10", "did not move"),
    "grpo: a model that knows nothing": (f"{GRPO} model=tiny model.path=", "had the same score"),
    "grpo: a reward that turns to 0 for all": (
        f"{GRPO} {REWARD}turns_to_0",
        "score of its own answers fell",
    ),
    "dpo: lr 1": (f"algorithm=dpo {RL} optim.lr=1", "harmed: held-out score"),
    "grpo: three of four answers have no score": (
        f"{GRPO} {REWARD}missing",
        "could be scored",
    ),
    "dapo: no group is kept": (
        f"algorithm=dapo {RL} algorithm.min_group_std=0.9 algorithm.overlong_buffer_len=1",
        "min_group_std",
    ),
    "grpo: answers of one token": (f"{GRPO} data.max_response_length=2", "were cut"),
}
"""Arguments, and what the last line, or a plan that refuses it, has to say."""
FAULTS: Mapping[str, tuple[str, int]] = {
    "cold start": (f"{GRPO} model=tiny model.path=", 1),
    "reward always 0": (f"{GRPO} reward=faulty reward.fault=zero", 1),
    "learning rate x66": (f"{GRPO} optim.lr=3.3e-2", 1),
    "reward is the length": (f"{GRPO} reward=faulty reward.fault=length", 1),
    "bonus for length": (f"{GRPO} reward=faulty reward.fault=bonus", 1),
    "reward flipped": (f"algorithm=faulty {RL} reward=faulty reward.fault=flipped reward.from_step=40", 40),
    "one NaN in the gradient": (f"algorithm=faulty {RL} algorithm.fault=nan_gradient algorithm.at_step=40", 40),
    "gradient x0": (f"algorithm=faulty {RL} algorithm.fault=frozen", 1),
    "no clip": (
        f"{GRPO} optim.lr=3e-3 trainer.ppo_epochs=4 trainer.ppo_mini_batch_size=4"
        " algorithm.clip_ratio_low=0.999999 algorithm.clip_ratio_high=1e9",
        1,
    ),
    "sampler at temperature 0.6": (f"{GRPO} sampler=other_temperature", 1),
    "old log-probabilities at temperature 0.6": (
        f"algorithm=faulty {RL} algorithm.fault=old_of_sampler sampler=other_temperature"
        " sampler.samples_with_it=false trainer.ppo_epochs=2",
        1,
    ),
    "sampler with old weights": (f"{GRPO} sampler=old_weights sampler.from_step=30", 30),
}
"""Arguments, and the first step at which the fault has an effect."""
HEALTHY: Mapping[str, str] = {
    "sft": f"{SFT} trainer.total_training_steps=200",
    "sft with adapters": f"{SFT} model.lora_rank=8 trainer.total_training_steps=200",
    "sft, cosine": f"{SFT} optim.lr_scheduler_type=cosine trainer.total_training_steps=200",
    "dpo": f"algorithm=dpo {RL} optim.lr=2e-5 sampler.n=",
    "grpo": GRPO,
    "grpo, kl, four updates": (
        f"{GRPO} algorithm.kl_loss_coef=0.01 trainer.ppo_epochs=2 trainer.ppo_mini_batch_size=8"
    ),
    "grpo, small batch": f"{GRPO} data.train_batch_size=4 optim.lr=2e-4",
    "grpo, two processes": f"{GRPO} hardware.nproc_per_node=2 trainer.micro_batch_size_per_gpu=64",
    "dr_grpo": f"algorithm=dr_grpo {RL}",
    "gspo, two updates": f"algorithm=gspo {RL} trainer.ppo_mini_batch_size=8",
    "dapo": f"algorithm=dapo {RL} algorithm.overlong_buffer_len=2",
    "ppo, two epochs": f"algorithm=ppo {RL} critic.optim.lr=1e-3 trainer.ppo_epochs=2",
    "self-play": f"algorithm=gspo_selfplay {RL}",
}
STILL: Mapping[str, tuple[str, str]] = {
    "sft: 6 updates": (f"{SFT} trainer.total_training_steps=6", "6 updates are too few"),
    "grpo: 2 updates": (f"{GRPO} trainer.total_training_steps=2 optim.lr=2e-5", "2 updates are too few"),
    "sft: rate 1e-9": (f"{SFT} optim.lr=1e-9", "did not move|weights moved"),
    "grpo: rate 1e-10": (f"{GRPO} optim.lr=1e-10", "did not move|weights moved"),
    "sft: rate 5": (f"{SFT} optim.lr=5", "loss rose"),
    "grpo: rate 0.03": (f"{GRPO} optim.lr=3e-2", r"optim\.lr="),
    "grpo: one score for all answers": (f"{GRPO} {REWARD}constant", "same score"),
    "grpo: scores by chance": (f"{GRPO} {REWARD}chance", ""),
    "grpo: a model that knows nothing": (f"{GRPO} model=tiny model.path=", "same score"),
    "ppo: a model that knows nothing": (f"algorithm=ppo {RL} model=tiny model.path= sampler.n=1", "same score"),
    "grpo: answers cut": (f"{GRPO} data.max_response_length=2", "were cut"),
    "grpo: held to the reference": (f"{GRPO} algorithm.kl_loss_coef=10000", "kl_loss_coef"),
    "sft: one row again and again": (OF_FILES % "one", "overfitted|held-out loss"),
    "sft: answers of other rows": (OF_FILES % "shuffled", ""),
    "dpo: labels swapped": (PAIRS % "swapped-pairs", "held-out loss"),
    "dpo: rate 1e-9": (f"{PAIRS} optim.lr=1e-9" % "pairs", "did not move|weights moved|did not change"),
}
"""Arguments, and a cause that the line has to name."""
LEARN: Mapping[str, str] = {
    "sft": f"{SFT} trainer.total_training_steps=800",
    "sft, own rows": f"{OWN % 'right'} optim.lr=3e-3 trainer.total_training_steps=300",
    "sft with adapters, from a checkpoint": f"{OF_FILES % 'right'} model.lora_rank=8 optim.lr=5e-3",
    "dpo": PAIRS % "pairs",
    "grpo": GRPO,
    "grpo, kl": f"{GRPO} algorithm.kl_loss_coef=0.01 trainer.ppo_mini_batch_size=8",
    "grpo with adapters": f"{GRPO} model.lora_rank=8 optim.lr=5e-3",
    "grpo, two processes": f"{GRPO} hardware.nproc_per_node=2 trainer.micro_batch_size_per_gpu=64",
    "grpo, resumed": f"{GRPO} trainer.total_training_steps=20 trainer.save_freq=20 RESUME",
    "dr_grpo": f"algorithm=dr_grpo {RL}",
    "gspo": f"algorithm=gspo {RL} trainer.ppo_mini_batch_size=8",
    "dapo": f"algorithm=dapo {RL} algorithm.overlong_buffer_len=2",
    "ppo": f"algorithm=ppo {RL} critic.optim.lr=1e-3 trainer.ppo_epochs=2",
    "self-play": f"algorithm=gspo_selfplay {RL}",
}
CASES: Mapping[str, Mapping[str, tuple[str, str | int | None]]] = {
    "ruined": {**RUINED, **{name: (words, None) for name, words in HEALTHY.items()}},
    "faults": {**FAULTS, **{name: (words, None) for name, words in HEALTHY.items()}},
    "ends": {**STILL, **{name: (words, None) for name, words in LEARN.items()}},
}
"""Arguments, and what is expected of the run; None of a healthy one."""


@dataclass
class Outcome:
    """What a run says of itself."""

    alerts: list[Alert] = field(default_factory=list)
    end: str = ""
    following: tuple[str, ...] = ()
    refused: str = ""
    """By the plan, so that nothing was started."""
    verdict: RunVerdict = NO_VERDICT

    @property
    def named(self) -> list[Alert]:
        return [alert for alert in self.alerts if ";" in alert.text]


def rlrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def train(folder: Path, name: str, words: str) -> Outcome:
    typed = [*COMMON.split(), *words.split(), f"trainer.run_root={folder}", f"trainer.experiment_name={name}"]
    by_key = {word.partition("=")[0]: word for word in typed if "=" in word}  # a later word wins
    given = [word for word in by_key.values() if not word.endswith("=")]
    ran = rlrun(folder, "train", "--config-dir", str(ROOT / "benchmarks" / "faulty"), *given)
    if "RESUME" in words.split():
        ran = rlrun(folder, "train", "--resume", str(folder / "rlrun" / name), "trainer.total_training_steps=60")
    events = list(events_of(folder / "rlrun" / name / "events.jsonl"))
    ended = [event for event in events if isinstance(event, Ended)]
    if not ended:
        return Outcome(refused=ran.stderr.strip() or "no events")
    alerts = [event for event in events if isinstance(event, Alert)]
    how, why, verdict = ended[-1].how, ended[-1].why, ended[-1].verdict
    end = f"{how}: {verdict.line if verdict else ''}; {why}" if why else how
    return Outcome(alerts, end, ended[-1].following, verdict=verdict or NO_VERDICT)


def write_files(folder: Path, seed: int) -> None:
    """Words to reverse: rows to train on, right, of other rows, or one of them again and again, and held-out rows."""
    chance = random.Random(seed)
    words = list({"".join(chance.choices(LETTERS, k=chance.randint(4, 8))): None for _ in range(1200)})
    train_on, held_out = words[:1000], words[1000:1128]
    others = [chance.choice(train_on) for _ in train_on]

    def write(name: str, rows: Iterator[tuple[str, str]]) -> None:
        lines = (json.dumps({"prompt": f"{word}>", "response": answer}) for word, answer in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    write("right", ((word, word[::-1]) for word in train_on))
    write("shuffled", ((word, other[::-1]) for word, other in zip(train_on, others, strict=True)))
    write("one", ((train_on[0], train_on[0][::-1]) for _ in range(256)))
    write("held-out", ((word, word[::-1]) for word in held_out))
    for name, part, sign in (("pairs", train_on, 1), ("swapped-pairs", train_on, -1), ("held-out-pairs", held_out, 1)):
        wrong = [word[::-1][:-1] + chance.choice(LETTERS.replace(word[0], "")) for word in part]
        rows = [(word, (word[::-1], other)[::sign]) for word, other in zip(part, wrong, strict=True)]
        lines = (json.dumps({"prompt": f"{word}>", "chosen": a, "rejected": b}) for word, (a, b) in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "rewards.py").write_text(REWARDS)


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


def fault_of_end(outcome: Outcome, folder: Path, name: str, cause: str | None) -> str:
    """What is wrong with the line of a run that cannot learn or, where `cause` is None, of one that does."""
    verdict = outcome.verdict
    if outcome.refused and cause:
        return ""
    if (verdict.kind == "learned") != (cause is None) or verdict.kind == "cannot tell":
        return "is wrong"
    if not re.search(cause or "", verdict.line):
        return f"does not name {cause!r}"
    run, kind = str(folder / "rlrun" / name), verdict.kind
    shown = {
        "status": verdict.line in rlrun(folder, "status", run).stdout,
        "diagnose": verdict.line in rlrun(folder, "diagnose", run).stdout,
        "diagnose --json": verdict.text in str(json.loads(rlrun(folder, "diagnose", run, "--json").stdout)[-1]),
        "runs": any(
            name in line and kind in line for line in rlrun(folder, "runs", f"--root={folder}").stdout.split("\n")
        ),
        "console.log": verdict.line in (Path(run) / "console.log").read_text(),
    }
    return ", ".join(f"{place} lacks it" for place, found in shown.items() if not found)


def rows(which: str, folder: Path, seed: int, only: str = "") -> Iterator[tuple[str, str, str, str, str]]:
    """Seed, name, findings and last line of each run, and what is wrong with them."""
    folder.mkdir()
    write_files(folder, seed)
    chosen = {name: case for name, case in CASES[which].items() if re.search(only, name)}
    if any("{base}" in words for words, _ in chosen.values()):
        train(folder, "base", f"{BASE} seed={seed}")
    for number, (name, (words, expected)) in enumerate(chosen.items()):
        run = f"run-{number}"
        typed = words.format(base=folder / "rlrun" / "base", folder=folder)
        outcome = train(folder, run, f"{STEPS[which]} {typed} seed={seed}")
        line = outcome.refused or (outcome.verdict.line if which == "ends" else outcome.end)
        if which == "faults":
            wrong = fault_of_alerts(outcome, None if expected is None else int(expected))
        else:
            judged = fault_of_end if which == "ends" else fault_of_ruined
            wrong = judged(outcome, folder, run, None if expected is None else str(expected))
        found = ", ".join(f"{alert.rule or 'engine'} {alert.step}" for alert in outcome.named)
        yield str(seed), name, found, line, wrong or "pass"


def main(given: argparse.Namespace) -> int:
    table, bad = Table("seed", "run", "alerts", "last line", ""), 0
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(given.seeds):
            for row in rows(given.which, Path(temp, str(seed)), seed, given.only):
                bad += row[-1] != "pass"
                table.add_row(*map(escape, row))
                print(*row, sep=" | ", flush=True)
    Console(width=200, emoji=False).print(table)
    print(f"{table.row_count - bad} of {table.row_count} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=CASES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression of names")
    sys.exit(main(parser.parse_args()))
