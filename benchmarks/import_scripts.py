"""Launch scripts in many shell styles: what our reader says they start, against bash in a sandbox of stubs.

    python benchmarks/import_scripts.py [--verbose] [--verl verl/trainer/config] [folder ...]

Ends with a table: scripts, launches, words that are equal, scripts with open parts, refusals. With `--verl`, the folder
of an installed verl, also the config that it composes of our words beside that of the script's, key by key."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from script_configs import compare_configs
from script_truth import Comparison, compare

from launcher.scripts.read import read_script

CASES = Path(__file__).parents[1] / "tests" / "scripts" / "cases"

COLUMNS = (
    "scripts", "words equal", "of them with open parts", "open condition", "refused", "wrong", "launches", "words",
    "environment equal", "CPU ms a script",
)  # fmt: skip


def show(one: Comparison) -> None:
    """What differs."""
    print(f"{one.name}: {one.outcome}")
    for launch in one.extra:
        print(f"  ours  {launch.line} {launch.program} {' '.join(map(repr, launch.words))}")
    for started in dict.fromkeys((one.program, one.words) for one in one.missing):
        print(f"  bash  {started[0]} {' '.join(map(repr, started[1]))}")
    if one.environment:
        print(f"  environment: {', '.join(one.environment)}")
    for refused in one.reading.refused:
        print(f"  refused {refused}")
    if one.missing or one.extra:
        print("  stderr  " + one.errors.strip()[:500].replace("\n", "\n          "))


CHANGED = 1
"""Launches whose config is another one on purpose: runtime_env_json.sh asks for Megatron by an older key alone."""
PIECES = (
    *"\n \"'`)}&|\\$#!*=(<>\t\r\0\ufeff\U000f0000é%/[]",
    "$(", "${", "((", "))", "[[", "]]", "if ", "then\n", "fi\n", "done\n", "do\n", "case x in ", "esac\n", ";;",
    "<<EOF\n", "EOF\n",
    "&&", "||", "\\\n", "$@", "${a[@]}", "{1..9}", "{a,b}", "while :; do ", "f() { f; }\n", "eval ", "$((",
)  # fmt: skip
"""What mutations put into scripts."""


def mutated(text: str, others: list[str], chance: random.Random) -> str:
    """A script with some characters removed, moved, cut off or replaced, or with a part of another script."""
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice((0, 1, 1, 5, 40)))
        kind = chance.randrange(5)
        if kind == 0:
            text = text[:at]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            text = text[:at] + other[begin : begin + chance.choice((3, 20, 200))] + text[end:]
        else:
            text = text[:at] + chance.choice(PIECES) + text[end:]
    return text


def read_mutated(folder: Path, count: int, seed: int) -> None:
    """Reads changed copies of the scripts, and prints how many were refused and the slowest; an exception ends it."""
    chance = random.Random(seed)
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.sh"))]
    slowest, refused, began = 0.0, 0, time.process_time()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.sh"
        for _ in range(count):
            text = mutated(chance.choice(texts), texts, chance)
            path.write_text(text, encoding="utf-8")
            before = time.process_time()
            refused += bool(read_script(path).refused)
            took = time.process_time() - before
            slowest = max(slowest, took)
    seconds = time.process_time() - began
    print(
        f"{count:,} changed copies: no exception, {refused:,} with refusals, slowest {slowest:.2f} s, {seconds:.0f} s"
    )


def scripts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sh")) if folder.is_dir() else [folder]


def configs_equal(folders: list[Path], files: Path) -> bool:
    """Prints how many launches have the config that verl composes of their own words, and what else was found."""
    scripts = [script for folder in folders for script in scripts_of(folder)]
    found = [one for script in scripts for one in compare_configs(script, files)]
    counts = Counter(one.outcome for one in found)
    names = ("equal", "differs", "refused", "not composed")
    print("\n| launches of verl's programs | config " + " | ".join(names) + " |\n|--:|" + "--:|" * len(names))
    print(f"| {len(found)} | " + " | ".join(str(counts[name]) for name in names) + " |")
    for one in found:
        if one.outcome in ("differs", "refused"):
            print(f"{one.name}: {one.outcome} in {len(one.lines)}:", *one.lines[:5], sep="\n  ")
    return counts["differs"] + counts["refused"] <= CHANGED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[CASES])
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--verl", type=Path, help="verl's folder trainer/config: compare the composed configs, too")
    parser.add_argument("--mutations", type=int, default=0, help="read so many changed copies instead")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.mutations:
        read_mutated(asked.folders[0], asked.mutations, asked.seed)
        return
    print(" | ".join(("| folder", *COLUMNS)) + " |")
    print("|---|" + "--:|" * len(COLUMNS))
    failed = False
    shown: list[Comparison] = []
    for folder in asked.folders:
        scripts = scripts_of(folder)
        began = time.process_time()
        found = [compare(script) for script in scripts]
        took = 1000 * (time.process_time() - began) / max(len(found), 1)
        counts = {name: sum(one.outcome == name for one in found) for name in ("equal", "open", "refused", "wrong")}
        opened = sum(one.equal and any(part.placeholder for part in one.reading.open) for one in found)
        launches = sum(len(one.truth) for one in found)
        words = sum(len(started.words) for one in found for started in one.truth)
        environment = sum(one.equal and not one.environment for one in found)
        row = (
            len(found),
            counts["equal"],
            opened,
            counts["open"],
            counts["refused"],
            counts["wrong"],
            launches,
            words,
            environment,
        )
        print(f"| {folder.name} | {' | '.join(map(str, row))} | {took:.0f} |")
        shown += [one for one in found if not one.equal or one.environment or asked.verbose]
        failed |= counts["wrong"] > 0
    for one in shown:
        show(one)
    if asked.verl:
        failed |= not configs_equal(asked.folders, asked.verl)
    sys.exit(failed)


if __name__ == "__main__":
    main()
