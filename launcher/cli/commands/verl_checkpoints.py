"""`rlrun checkpoints [list | export | repair] FOLDER` of checkpoints that verl wrote outside of rlrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rich.text import Text

from launcher.cli.output import Cell, make_table, out, say, say_table, write
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.engines.verl import saved
from launcher.monitor.console import date


def is_folder(name: str) -> bool:
    """Whether that is a folder with checkpoints of verl, and no run of rlrun."""
    folder = Path(name).expanduser()
    return folder.is_dir() and not (folder / "spec.yaml").exists() and bool(saved.folders(folder))


def list_all(folder: Path, as_json: bool) -> None:
    """Each with its size and faults; which one verl itself would resume from."""
    tracked = saved.tracked(folder)
    rows = [(step, path, saved.faults(path)) for step, path in saved.folders(folder)]
    write([_node(*row, tracked) for row in rows], as_json, lambda: _show(folder, rows, tracked))


def _show(folder: Path, rows: list[tuple[int, Path, list[Problem]]], tracked: int | None) -> None:
    cells = list[list[Cell]]()
    for step, path, faults in rows:
        state = ("not complete", "red") if faults else ("complete", "")
        mark = ("resumed by verl" if step == tracked else "", "green")
        cells.append([str(step), date(path.stat().st_mtime), f"{_bytes(path) / 1e6:,.1f}", state, mark])
    say_table(make_table(["step", "written", "MB", "files", ""], cells, right=["step", "MB"]))
    for fault in (fault for _, _, faults in rows for fault in faults):
        out.print(Text.assemble(("not complete  ", "bold red"), printable(str(fault))), soft_wrap=True)
    if tracked is None:
        say(f"{saved.TRACKER} names no step; rlrun checkpoints repair {folder} writes it anew", "dim")


def repair(folder: Path) -> None:
    """Make verl's tracker file name the newest checkpoint that is complete. Raises `Problems` where none is."""
    if done := saved.repair_tracker(folder):
        return say(done)
    if saved.tracked(folder) is None:
        faults = [fault for _, path in saved.folders(folder) for fault in saved.faults(path)]
        raise Problems(
            [*faults, Problem(str(folder), "holds no complete checkpoint", "use another folder", "bad-file")]
        )
    return say(f"{saved.TRACKER} names step {saved.tracked(folder)}: nothing is to be repaired")


def export(folder: Path, step: int | None, target: Path, python: str | None) -> None:
    """Write one of them in Hugging Face's layout, the newest complete one by default. Raises `Problems`."""
    found = {number: path for number, path in saved.folders(folder) if step in (None, number)}
    chosen = next(((number, path) for number, path in found.items() if not saved.faults(path)), None)
    if chosen is None:
        faults = [fault for path in found.values() for fault in saved.faults(path)]
        there = " or ".join(str(number) for number, _ in saved.folders(folder))
        raise Problems([*faults, Problem("--step", "no such complete checkpoint", f"use {there}", "not-found")])
    if target.exists():
        raise Problems(Problem("--out", f"{target} is there already", "use a new folder", "in-use"))
    saved.merge(python or sys.executable, chosen[1], target)
    say(f"{target}  model of step {chosen[0]}, written by verl's own merger")


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _node(step: int, path: Path, faults: list[Problem], tracked: int | None) -> dict[str, Any]:
    return {"step": step, "path": os.fspath(path), "bytes": _bytes(path), "faults": list(map(str, faults)),
            "complete": not faults, "tracked": step == tracked}  # fmt: skip
