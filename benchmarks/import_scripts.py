"""Launch scripts in many shell styles: what our reader says they start, against bash in a sandbox of stubs.

    python benchmarks/import_scripts.py [--verbose] [folder ...]

Ends with a table: scripts, launches, words that are equal, scripts with open parts, refusals."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from script_truth import Comparison, compare

CASES = Path(__file__).parents[1] / "tests" / "scripts" / "cases"

COLUMNS = (
    "scripts", "words equal", "of them with open parts", "refused", "wrong", "launches", "words", "environment equal",
    "CPU ms a script",
)  # fmt: skip


def show(one: Comparison) -> None:
    """What differs."""
    print(f"{one.name}: {one.outcome}")
    for launch in one.extra:
        print(f"  ours  {launch.line} {launch.program} {' '.join(map(repr, launch.words))}")
    for started in one.missing:
        print(f"  bash  {started.program} {' '.join(map(repr, started.words))}")
    if one.environment:
        print(f"  environment: {', '.join(one.environment)}")
    for refused in one.reading.refused:
        print(f"  refused {refused}")
    if one.missing or one.extra:
        print("  stderr  " + one.errors.strip()[:500].replace("\n", "\n          "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[CASES])
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    print(" | ".join(("| folder", *COLUMNS)) + " |")
    print("|---|" + "--:|" * len(COLUMNS))
    failed = False
    shown: list[Comparison] = []
    for folder in asked.folders:
        scripts = sorted(folder.glob("*.sh")) if folder.is_dir() else [folder]
        began = time.process_time()
        found = [compare(script) for script in scripts]
        took = 1000 * (time.process_time() - began) / max(len(found), 1)
        counts = {name: sum(one.outcome == name for one in found) for name in ("equal", "refused", "wrong")}
        opened = sum(one.equal and any(part.placeholder for part in one.reading.open) for one in found)
        launches = sum(len(one.truth) for one in found)
        words = sum(len(started.words) for one in found for started in one.truth)
        environment = sum(one.equal and not one.environment for one in found)
        row = (len(found), counts["equal"], opened, counts["refused"], counts["wrong"], launches, words, environment)
        print(f"| {folder.name} | {' | '.join(map(str, row))} | {took:.0f} |")
        shown += [one for one in found if not one.equal or one.environment or asked.verbose]
        failed |= counts["wrong"] > 0
    for one in shown:
        show(one)
    sys.exit(failed)


if __name__ == "__main__":
    main()
