"""What make targets say, as JSON, so that a change can show that their verdicts stay.

`verdicts.py write FILE TARGET...` runs targets of the checkout in this folder and keeps the rows of their tables.
`verdicts.py compare BEFORE AFTER` lists the rows that differ. Columns that measure time or memory are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

MEASURED = re.compile(r"\b(CPU|s|ms|seconds|time|took|MB|MiB|GB|MB/s|rows/s)\b", re.IGNORECASE)
HEADS, CELLS = "┃", "│"


def read_tables(output: str) -> list[list[str]]:
    """The rows of every table that was printed, each with its title's place; cells that wrap are joined."""
    rows, columns = list[list[str]](), list[bool]()
    for line in output.splitlines():
        mark = next((mark for mark in (HEADS, CELLS) if line.lstrip().startswith(mark)), "")
        if not mark:
            continue
        cells = [cell.strip() for cell in line.strip().strip(mark).split(mark)]
        if mark == HEADS:
            columns = [not MEASURED.search(cell) for cell in cells]
            continue
        stays = [cell for cell, keep in zip(cells, columns, strict=False) if keep]
        if cells[0] or not rows:
            rows.append(stays)
        else:  # the rest of a cell that did not fit its line
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], stays, strict=False)]
    return rows


def run_target(target: str) -> dict[str, Any]:
    environment = {**os.environ, "COLUMNS": "400", "TERM": "dumb"}
    outcome = subprocess.run(["make", *target.split()], capture_output=True, text=True, env=environment, check=False)
    return {"code": outcome.returncode, "rows": read_tables(outcome.stdout), "end": outcome.stdout.splitlines()[-3:]}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for target in sorted({*before, *after}):
        old, new = before.get(target, {}), after.get(target, {})
        if old.get("code") != new.get("code"):
            found.append(f"{target}: ended with {old.get('code')}, now {new.get('code')}")
        old_rows, new_rows = ([" | ".join(row) for row in each.get("rows", [])] for each in (old, new))
        found += [f"{target}: - {row}" for row in old_rows if row not in new_rows]
        found += [f"{target}: + {row}" for row in new_rows if row not in old_rows]
    return found


def main(arguments: list[str]) -> int:
    match arguments:
        case ["write", file, *targets] if targets:
            path = Path(file)
            kept = json.loads(path.read_text()) if path.exists() else {}
            for target in targets:
                kept[target] = run_target(target)
                path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
            return 0
        case ["compare", before, after]:
            found = differences(*(json.loads(Path(file).read_text()) for file in (before, after)))
            print(*(found or ["no verdict differs"]), sep="\n")
            return bool(found)
    sys.exit(str(__doc__))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
