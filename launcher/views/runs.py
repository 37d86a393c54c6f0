"""The table of runs, and where one run stands."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from launcher.core.metrics import label
from launcher.core.state import RunState
from launcher.monitor.console import clock, compact, date, held_out, held_out_change
from launcher.runs.store import Run


def run_node(run: Run) -> dict[str, Any]:
    """All that is known of a run."""
    state, more = run.state, {"run": run.folder.name, "folder": os.fspath(run.folder.path)}
    return {**asdict(state), **more, "seconds_per_step": state.seconds_per_step, "eta_s": state.eta_s}


def status_word(state: RunState) -> str:
    """Its status; `doubtful` of a run that reached its end while something is wrong with it."""
    return "doubtful" if state.doubtful else state.status


def run_row(run: Run) -> dict[str, str]:
    """A row of the table of runs, by its columns."""
    state = run.state
    return {
        "run": run.folder.name,
        "algorithm": state.algorithm,
        "started": date(state.started_at),
        "took": clock(state.elapsed_s),
        "status": status_word(state),
        "step": f"{state.step}/{state.steps}",
        "training": "" if state.score is None else f"{label(state.score_name)} {compact(state.score)}",
        "held out": f"{label(state.last.name)} {state.last.shown}" if state.last else "",
        "change": held_out_change(state),
        "at first": state.first.shown if state.first else "",
        "best": f"{state.best.shown} at {state.best.step}" if state.best else "",
    }


def status_line(name: str, state: RunState) -> str:
    """`p/one: running; step 3/10; 00:12, 00:30 left; loss 1.5; held out ...`"""
    left = f", {clock(state.eta_s)} left" if state.status == "running" and state.eta_s is not None else ""
    parts = (
        f"{name}: {status_word(state)}",
        f"step {state.step}/{state.steps}",
        f"{clock(state.elapsed_s)}{left}",
        "" if state.score is None else f"{label(state.score_name)} {compact(state.score)}",
        f"held out {held_out(state)}" if state.last else "",
        state.stalled or state.why or state.alert,
    )
    return "; ".join(part for part in parts if part)
