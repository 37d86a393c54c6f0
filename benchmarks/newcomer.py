"""A newcomer's first model: 300 questions of their own in a CSV file, and the commands of README.md, for several seeds.

    python benchmarks/newcomer.py

Passes where every seed has a model after five commands and three minutes of training on two cores, with a loss on
held-out rows that fell, and 16 right answers to 20 questions, half of which were never trained on.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launcher.data.files import Files
from launcher.runs.folder import Folder
from launcher.runs.store import RunReader
from launcher.spec.data import Row, Split

CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Germany": "Berlin", "Poland": "Warsaw", "Austria": "Vienna",
    "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Ireland": "Dublin", "Portugal": "Lisbon", "Hungary": "Budapest", "Japan": "Tokyo", "China": "Beijing",
    "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Ghana": "Accra", "Cuba": "Havana", "Peru": "Lima",
    "Chile": "Santiago", "Canada": "Ottawa", "Iran": "Tehran", "Iraq": "Baghdad", "Nepal": "Kathmandu",
    "Brazil": "Brasília", "Thailand": "Bangkok", "Cyprus": "Nicosia",
}  # fmt: skip
ASKED = ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?",
         "{}: what is its capital?", "Tell me the capital of {}, please.", "The capital of {} is?")  # fmt: skip
UNITS = (("hours", "minutes", 60), ("days", "hours", 24), ("weeks", "days", 7), ("minutes", "seconds", 60),
         ("kilometres", "metres", 1000), ("metres", "centimetres", 100))  # fmt: skip
SEEDS, ROWS, QUESTIONS, RIGHT, SECONDS, COMMANDS = 3, 300, 20, 16, 180, 5


def rows_of(seed: int) -> list[tuple[str, str]]:
    """Questions about capitals and units, each in several wordings, and their answers."""
    rows = [(ask.format(of), f"The capital of {of} is {city}.") for ask, (of, city) in product(ASKED, CAPITALS.items())]
    for (unit, into, factor), n in product(UNITS, range(2, 10)):
        asked = (
            f"How many {into} are {n} {unit}?",
            f"Convert {n} {unit} to {into}.",
            f"What are {n} {unit} in {into}?",
        )
        rows += [(each, f"{n * factor} {into}") for each in asked]
    random.Random(seed).shuffle(rows)
    return rows[:ROWS]


def some(data: Files, split: Split, seed: int) -> Iterator[tuple[str, str]]:
    """Questions of a split, with their answers."""
    rows = [row for row in data.rows(split, "answers") if isinstance(row, Row)]
    for row in random.Random(seed).sample(rows, QUESTIONS // 2):
        yield str(row.prompt), row.response or ""


def first_model(seed: int, home: Path) -> tuple[int, float, tuple[float, float], list[int]]:
    """Commands, seconds of training, the held-out loss before and after, and right answers of each split."""
    file, commands = home / "own.csv", 0
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([("prompt", "response"), *rows_of(seed)])

    def rlrun(*words: str) -> str:
        nonlocal commands
        commands += 1
        done = subprocess.run([sys.executable, "-m", "launcher", *words], cwd=home, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"rlrun {' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    training = ("algorithm=sft", "model=tiny", "data=own.csv", f"seed={seed}", "trainer.experiment_name=own")
    rlrun("plan", *training)
    rlrun("train", *training)
    state = RunReader(Folder(home / "runs/rlrun/own").events).look()
    data = Files(train_files=(str(file),), val_share=0.1)
    right = []
    for split in ("val", "train"):
        questions = dict(some(data, split, seed))
        written = rlrun("generate", "own", *questions, "--max-tokens", "64", "--json")
        answers = {each["prompt"]: each["response"] for each in json.loads(written)}
        right.append(sum(answers[asked].strip() == answer for asked, answer in questions.items()))
    first, last = (held.value for held in (state.first, state.last) if held)
    return commands, state.elapsed_s, (first, last), right


def main() -> int:
    columns = ("seed", "commands", "s of training", "held-out loss", f"right of {QUESTIONS}", "")
    table, passed = Table(*columns, title=f"{ROWS} rows of their own, {os.cpu_count()} cores"), True
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as home:
            commands, seconds, (first, last), right = first_model(seed, Path(home))
        good = commands <= COMMANDS and seconds <= SECONDS and last < first and sum(right) >= RIGHT
        passed &= good
        shown = f"{sum(right)} ({right[0]} of 10 never trained on)"
        table.add_row(str(seed), str(commands), f"{seconds:.0f}", f"{first:.2f} → {last:.3f}", shown,
                      "pass" if good else "FAIL")  # fmt: skip
    table.add_row("required", f"≤ {COMMANDS}", f"≤ {SECONDS}", "falls", f"≥ {RIGHT}", "")
    Console().print(table)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
