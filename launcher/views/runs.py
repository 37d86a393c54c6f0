"""The table of runs, and the status of one run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, get_args

from launcher.core.metrics import better, label
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.state import RunState, Status
from launcher.monitor.console import clock, date, held_out, unsaid, waiting
from launcher.runs.store import Run


def run_node(run: Run) -> dict[str, Any]:
    """All that is known of a run, as JSON-like values."""
    state, names = run.state, {"run": run.folder.name, "folder": os.fspath(run.folder.path)}
    return {**asdict(state), **names, "seconds_per_step": state.seconds_per_step, "eta_s": state.eta_s}


def status_word(state: RunState) -> str:
    """The status of a run; `doubtful` if it finished, but something is wrong with its result."""
    return "doubtful" if state.doubtful else state.status


Order = Literal["started", "run", "status", "took", "step", "held-out"]


def picked(runs: list[Run], text: str, status: str, order: Order) -> list[Run]:
    """The runs whose name or algorithm contains `text`, of this status, in this order; `runs` has the latest first.
    Raises `Problems` for an unknown status."""
    statuses = (*get_args(Status), "doubtful")
    if status and status not in statuses:
        raise Problems(Problem("--status", f"got {short_repr(status)}", suggest(status, statuses)))
    matching = [
        run for run in runs
        if text.lower() in f"{run.folder.name} {run.state.algorithm}".lower()
        and status in ("", run.state.status, status_word(run.state))
    ]  # fmt: skip
    keys: dict[Order, Callable[[Run], Any]] = {
        "started": lambda run: 0, "run": lambda run: run.folder.name,
        "status": lambda run: status_word(run.state), "took": lambda run: -run.state.elapsed_s,
        "step": lambda run: -run.state.step, "held-out": _sort_key_of_score,
    }  # fmt: skip
    return sorted(matching, key=keys[order])


def _sort_key_of_score(run: Run) -> float:
    """Sorts the best last validation first, and runs without one last."""
    last = run.state.last
    return math.inf if last is None else last.value if better(last.name) == "down" else -last.value


def run_row(run: Run) -> dict[str, str]:
    """A row of the table of runs by its columns, most important first: a narrow terminal shows as many as fit."""
    state = run.state
    return {
        "run": run.folder.name,
        "status": status_word(state),
        "step": f"{state.step}/{state.steps}",
        "outcome": state.verdict.kind if state.verdict else "",
        "held out": f"{label(state.last.name)} {state.last.shown}" if state.last else "",
        "training": "" if state.score is None else f"{label(state.score_name)} {compact(state.score)}",
        "took": clock(state.elapsed_s),
        "started": date(state.started_at),
        "algorithm": state.algorithm,
        "best": f"{state.best.shown} at {state.best.step}" if state.best else "",
        "at first": state.first.shown if state.first else "",
    }


def status_line(name: str, state: RunState) -> str:
    """`p/one: running; step 3/10; 00:12, 00:30 left; loss 1.5; held out ...`"""
    left = f", {clock(state.eta_s)} left" if state.status == "running" and state.eta_s is not None else ""
    parts = (
        f"{name}: {status_word(state)}",
        f"step {state.step}/{state.steps or '?'}",
        f"{clock(state.elapsed_s)}{left}",
        "" if state.score is None else f"{label(state.score_name)} {compact(state.score)}",
        f"held out {held_out(state)}" if state.last else "",
        state.verdict.line if state.verdict else "",
        waiting(state, time.time()) or unsaid(state) or ("" if state.verdict else state.alert),
    )
    return "; ".join(part for part in parts if part)
