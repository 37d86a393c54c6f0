"""`rlrun checkpoints [list | export | repair] FOLDER` of checkpoints that verl wrote outside of rlrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from launcher.cli.output import Cell, CommandAnswer, make_table, say, say_table
from launcher.core.problems import Problem, Problems
from launcher.engines.verl import saved
from launcher.monitor.console import date


def is_folder(name: str) -> bool:
    """Whether `name` is a folder with checkpoints of verl and is not a run of rlrun."""
    folder = Path(name).expanduser()
    return folder.is_dir() and not (folder / "spec.yaml").exists() and bool(saved.folders(folder))


def answer(action: str, folder: Path, step: int | None, target: Path | None, python: str | None) -> CommandAnswer:
    """The answer of an action; `step`, the new folder `target` and verl's `python` are of export. Raises `Problems`."""
    if action == "best":
        raise Problems(Problem("best", f"{folder} is verl's, which keeps no scores there", "use list", "not-supported"))
    if action == "repair":
        return _repair(folder)
    if action == "export":
        return _export(folder, step, target, python)
    tracked = saved.tracked(folder)
    nodes = [_checkpoint_node(saved_step, path, tracked) for saved_step, path in saved.folders(folder)]
    return CommandAnswer(nodes, lambda: _say_checkpoints(folder, nodes, tracked))


def _checkpoint_node(step: int, path: Path, tracked: int | None) -> dict[str, Any]:
    faults = list(map(str, saved.faults(path)))
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"step": step, "path": os.fspath(path), "bytes": size, "faults": faults, "complete": not faults,
            "tracked": step == tracked}  # fmt: skip


def _say_checkpoints(folder: Path, nodes: list[dict[str, Any]], tracked: int | None) -> None:
    rows: list[list[Cell]] = [
        [
            str(node["step"]), date(os.stat(node["path"]).st_mtime), f"{node['bytes'] / 1e6:,.1f}",
            "complete" if node["complete"] else ("not complete", "red"),
            ("resumed by verl" if node["tracked"] else "", "green"),
        ]
        for node in nodes
    ]  # fmt: skip
    say_table(make_table(["step", "written", "MB", "files", ""], rows, right=["step", "MB"]))
    for fault in (fault for node in nodes for fault in node["faults"]):
        say(f"not complete  {fault}", "red")
    if tracked is None:
        say(f"{saved.TRACKER} names no step; rlrun checkpoints repair {folder} writes it anew", "dim")


def _repair(folder: Path) -> CommandAnswer:
    """Make verl's tracker file name the newest checkpoint that is complete. Raises `Problems` where none is."""
    change = saved.repair_tracker(folder)
    tracked = saved.tracked(folder)
    if tracked is None:
        faults = [fault for _, path in saved.folders(folder) for fault in saved.faults(path)]
        problem = Problem(str(folder), "holds no complete checkpoint", "use another folder", "bad-file")
        raise Problems([*faults, problem])
    text = change or f"{saved.TRACKER} names step {tracked}: nothing is to be repaired"
    return CommandAnswer({"tracked": tracked, "repaired": bool(change)}, lambda: say(text))


def _export(folder: Path, step: int | None, target: Path | None, python: str | None) -> CommandAnswer:
    """Write one checkpoint in Hugging Face's layout, by default the newest complete one. Raises `Problems`."""
    if target is None:
        raise Problems(Problem("--out", "is missing", "use a new folder"))
    if target.exists():
        raise Problems(Problem("--out", f"{target} is there already", "use a new folder", "in-use"))
    paths_by_step = {number: path for number, path in saved.folders(folder) if step in (None, number)}
    chosen = next((number for number, path in paths_by_step.items() if not saved.faults(path)), None)
    if chosen is None:
        faults = [fault for path in paths_by_step.values() for fault in saved.faults(path)]
        steps = " or ".join(str(number) for number, _ in saved.folders(folder))
        raise Problems([*faults, Problem("--step", "no such complete checkpoint", f"use {steps}", "not-found")])
    saved.merge(python or sys.executable, paths_by_step[chosen], target)
    text = f"{target}  model of step {chosen}, written by verl's own merger"
    return CommandAnswer({"path": target, "step": chosen}, lambda: say(text))
