"""The line at the end of runs that cannot learn and of runs that do: `verdicts_at_end.py [--seeds 3] [--only NAME]`.

Each trains for seconds on this CPU. A run that cannot learn has to end with "not learned" or "harmed" and the cause,
one that does with "learned"; the same line has to stand in `status`, `runs`, `diagnose` and console.log.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ruined import BASE, RL, SFT, rlrun, train

from launcher.core.events import events_of
from launcher.core.state import fold
from launcher.core.verdict import RunVerdict

LETTERS = "abcdefghij"
ROWS = "data=files data.train_files={folder}/%s.jsonl data.val_files={folder}/held-out.jsonl"
OWN = f"algorithm=sft model=tiny data.train_batch_size=16 {ROWS}"
OF_FILES = f"{OWN} model=hf model.path={{base}} optim.lr=1e-3"
PAIRS = f"algorithm=dpo model=hf model.path={{base}} optim.lr=2e-4 data.train_batch_size=16 {ROWS}"
GRPO = f"algorithm=grpo {RL}"
REWARD = "reward=python reward.path={folder}/rewards.py reward.name="
REWARDS = """
import random

def constant(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5

def chance(data_source, solution_str, ground_truth, extra_info=None):
    return float(random.random() < 0.5)
"""
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
    "sft": f"{SFT} trainer.total_training_steps=400",
    "sft, own rows": f"{OWN % 'right'} optim.lr=3e-3 trainer.total_training_steps=300",
    "sft with adapters, from a checkpoint": f"{OF_FILES % 'right'} model.lora_rank=8 optim.lr=5e-3",
    "dpo": PAIRS % "pairs",
    "grpo": GRPO,
    "grpo, kl": f"{GRPO} algorithm.kl_loss_coef=0.01 trainer.ppo_mini_batch_size=8",
    "grpo with adapters": f"{GRPO} model.lora_rank=8 optim.lr=5e-3",
    "grpo, two processes": f"{GRPO} hardware.nproc_per_node=2 trainer.micro_batch_size_per_gpu=64",
    "grpo, resumed": f"{GRPO} trainer.save_freq=20 RESUME",
    "dr_grpo": f"algorithm=dr_grpo {RL}",
    "gspo": f"algorithm=gspo {RL} trainer.ppo_mini_batch_size=8",
    "dapo": f"algorithm=dapo {RL} algorithm.overlong_buffer_len=2",
    "ppo": f"algorithm=ppo {RL} critic.optim.lr=1e-3 trainer.ppo_epochs=2",
    "self-play": f"algorithm=gspo_selfplay {RL}",
}


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


def verdict_of(folder: Path, name: str) -> RunVerdict:
    verdict = fold(events_of(folder / "rlrun" / name / "events.jsonl")).verdict
    return verdict or RunVerdict("cannot tell", "there is no line")


def fault_of(folder: Path, name: str, verdict: RunVerdict, cause: str | None) -> str:
    """What is wrong with the line of a run that cannot learn or, where `cause` is None, of one that does."""
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


def rows(folder: Path, seed: int, only: str, names: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Name, line and fault of each run; those of `names` alone, where some are given."""
    folder.mkdir()
    write_files(folder, seed)
    cases: dict[str, tuple[str, str | None]] = {**STILL, **{name: (words, None) for name, words in LEARN.items()}}
    chosen = {name: cases[name] for name in names or cases if re.search(only, name)}
    if any("{base}" in words for words, _ in chosen.values()):
        train(folder, "base", f"{BASE} seed={seed}")
    for number, (name, (words, cause)) in enumerate(chosen.items()):
        run, steps = f"run-{number}", "trainer.total_training_steps=60 trainer.test_freq=20 data.n_val=256"
        words = words.replace("held-out", "held-out-pairs") if "dpo" in words else words
        typed = f"{steps} {words.format(base=folder / 'rlrun' / 'base', folder=folder)} seed={seed}"
        typed = typed.replace("data.n_val=256 ", "data.n_val= ") if "data=files" in typed else typed
        if resumes := "RESUME" in typed:
            typed = typed.replace(" RESUME", "").replace("total_training_steps=60", "total_training_steps=20")
        outcome = train(folder, run, typed)
        if resumes:
            rlrun(folder, "train", "--resume", str(folder / "rlrun" / run), "trainer.total_training_steps=60")
        verdict = verdict_of(folder, run)
        line = f"refused: {outcome.refused}" if outcome.refused else verdict.line
        yield name, line, "" if outcome.refused and cause else fault_of(folder, run, verdict, cause)


def main(given: argparse.Namespace) -> int:
    good = bad = 0
    with tempfile.TemporaryDirectory() as temp:
        for seed in range(given.seeds):
            for name, line, fault in rows(Path(temp, str(seed)), seed, given.only):
                good, bad = good + (not fault), bad + bool(fault)
                print(seed, name, line, fault or "pass", sep=" | ", flush=True)
    print(f"{good} of {good + bad} as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression of names")
    sys.exit(main(parser.parse_args()))
