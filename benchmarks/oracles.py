"""Ours against verl and TRL: how far values and gradients lie apart, and where the two say something else on purpose.

    python benchmarks/oracles.py [PYTHON]

PYTHON has verl, TRL and pytest, `.venv-oracles/bin/python` by default. Ends with 1 if any test fails or any
difference is above 1e-9.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
CLOSE = 1e-9


def asked(python: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of the tests in `tests/oracles`, and what they wrote down."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [python, "-W", "ignore", "-m", "pytest", "tests/oracles", "-q", "--no-header", "-p", "no:cacheprovider"]
        told = os.environ | {"PYTHONPATH": str(ROOT), "ORACLES_REPORT": str(report)}
        status = subprocess.run(words, cwd=ROOT, env=told, check=False).returncode
        return status, json.loads(report.read_text()) if report.exists() else []


def largest(found: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float | None, int]]:
    """Of each function and peer: the largest difference of the value, of the gradient, and the batches asked about."""
    rows: dict[tuple[str, str], tuple[float, float | None, int]] = {}
    for one in found:
        key = one["peer"], one["function"]
        value, gradient, count = rows.get(key, (0.0, None, 0))
        if one["gradient"] is not None:
            gradient = max(gradient or 0.0, one["gradient"])
        rows[key] = max(value, one["value"]), gradient, count + 1
    return rows


def compared(rows: dict[tuple[str, str], tuple[float, float | None, int]]) -> Table:
    table = Table("function", "peer", title=f"The same, to {CLOSE:g} in float64", box=box.SIMPLE, title_justify="left")
    for name in ("batches", "value", "gradient", "verdict"):
        table.add_column(name, justify="right")
    for (peer, function), (value, gradient, count) in sorted(rows.items()):
        verdict = "same" if max(value, gradient or 0.0) <= CLOSE else "[red]differs"
        pull = "–" if gradient is None else f"{gradient:.1e}"
        table.add_row(function, peer, str(count), f"{value:.1e}", pull, verdict)
    return table


def deviating(found: list[dict[str, Any]]) -> Table:
    table = Table("what", "peer", title="Different, and known to be", box=box.SIMPLE, title_justify="left")
    for name in ("ours", "theirs"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(one["deviation"], one["peer"], f"{one['ours']:.6g}", f"{one['theirs']:.6g}")
    return table


def main(python: str = ".venv-oracles/bin/python") -> int:
    status, found = asked(python)
    rows = largest([one for one in found if "function" in one])
    console = Console(width=100)
    console.print(compared(rows), deviating([one for one in found if "deviation" in one]))
    worst = max((max(value, gradient or 0.0) for value, gradient, _ in rows.values()), default=float("inf"))
    console.print(f"{len(rows)} functions, largest difference {worst:.1e}")
    return int(status != 0 or worst > CLOSE)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
