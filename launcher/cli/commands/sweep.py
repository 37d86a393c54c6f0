"""`rlrun train -m` and `rlrun plan -m`: a sweep's points, planned together, run side by side, shown in one table."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.cli.live_view import COLOURS, Drawing
from launcher.cli.output import Cell, CommandAnswer, make_table, out, say, say_problems, say_table, tell
from launcher.config.request import RunRequest
from launcher.core.check_result import from_problems
from launcher.core.metrics import held_out_score, label
from launcher.core.problems import Problem, Problems, short_repr
from launcher.core.redaction import printable
from launcher.core.state import RunState
from launcher.launch import sweep as points
from launcher.monitor.console import LinePrinter, ProgressTimer, clock
from launcher.preflight.plan import problems
from launcher.runs.stop_requests import handle_signals

Parallel = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Points of a sweep at a time; 0: as many as there is room."),
]


def choose(by: RunRequest, resume: str | None, root: Path, multirun: bool, parallel: int | None) -> points.Sweep | None:
    """The sweep that `resume` names, or a new one; None where a single run is asked for. Raises `Problems`."""
    path = points.find(resume, root) if resume is not None else None
    if path is None:
        if multirun and resume is not None:
            got = f"no sweep {short_repr(resume)} in {root}"
            raise Problems(Problem("--resume", got, "use -m alone to start one", "not-found"))
        if parallel is not None and not multirun:
            raise Problems(Problem("--parallel", "is for a sweep", "use -m to start one"))
        return _begin(by, parallel) if multirun else None
    sweep = points.read(path)
    if by.overrides and by.texts != sweep.words:
        original = shlex.join(sweep.words)
        got = f"{sweep.name} was started with other arguments"
        raise Problems(Problem("--resume", got, f"use none, or {original}", "changed"))
    return sweep if parallel is None else replace(sweep, parallel=parallel or None)


def _begin(by: RunRequest, parallel: int | None) -> points.Sweep:
    planned = points.plan(by.texts, by.config_dir, watch=_report_planning())
    return points.begin(by.texts, by.config_dir, planned, parallel or None)


def run(found: points.Sweep) -> int:
    """Run the sweep to its end; returns the exit code."""
    with _show_views(found) as show:
        code = points.drive(found, show, handle=handle_signals)
    views = points.views(found)
    say_table(table(views))
    for view in views:
        if view.entry.status == "failed" or view.state.doubtful:
            say_problems([f"{view.entry.name}: {view.entry.why or view.state.why}"])
    if any(view.entry.status != "finished" for view in views):
        tell(f"rlrun train --resume {found.path} goes on with what is not done")
    return code


def answer_sweep(path: Path) -> CommandAnswer:
    """The state of each point, as a command's answer."""
    views = points.views(points.read(path))
    nodes = [
        {
            **asdict(view.entry), "folder": view.folder.path, "step": view.state.step,
            "steps": view.state.steps, "held_out": held_out_score(view.state.validation),
        }
        for view in views
    ]  # fmt: skip
    return CommandAnswer(nodes, lambda: say_table(table(views)))


def plan(by: RunRequest, *, here: bool = False) -> CommandAnswer:
    """The points of a sweep, and what would fail; exit code 1 where anything would."""
    planned = points.plan(by.texts, by.config_dir, partial(problems, here=here), _report_planning())
    ok = not any(each.problems for each in planned)
    nodes = [
        {
            "name": each.name, "differs": dict(each.point.differs), "words": list(each.point.overrides),
            "ok": not each.problems, "results": from_problems(each.problems),
        }
        for each in planned
    ]  # fmt: skip
    return CommandAnswer({"ok": ok, "points": nodes}, lambda: _say_plan(planned), exit_code=int(not ok))


def _say_plan(planned: list[points.Planned]) -> None:
    for each in planned:
        level = Text("FAIL", "bold red") if each.problems else Text("OK", "green")
        name = printable(each.name)
        out.print(Text.assemble(level, f"  {name}  ", (printable(each.point.label), "dim")), soft_wrap=True)
    say_problems(points.problems(planned), out)
    count = "1 point" if len(planned) == 1 else f"{len(planned)} points"
    say(f"{count}, {sum(bool(each.problems) for each in planned)} would fail", "dim")


def _report_planning() -> points.OnCount:
    """The callback that reports the progress of planning now and then."""
    timer = ProgressTimer()

    def watch(done: int, every: int) -> None:
        if timer.due():
            tell(f"planned {done:,} of {every:,} points")

    return watch


@contextmanager
def _show_views(sweep: points.Sweep) -> Iterator[points.OnViews]:
    """The callback that shows a running sweep: a table on a terminal, else the points' lines after their names."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        printer = LinePrinter()
        say(f"sweep {sweep.name}: {len(sweep.points)} points")
        yield lambda views, lines: printer.write(RunState(), [], [f"[{name}] {line}" for name, line in lines])
        return
    with closing(Drawing(console, transient=True)) as drawing:
        yield lambda views, lines: drawing.draw(lambda: table(sorted(views, key=_draws_later)))


def _draws_later(view: points.View) -> bool:
    """Whether the point stands below those that run or failed: a terminal shows as many rows as it has."""
    return view.entry.status not in ("running", "failed")


def table(views: Sequence[points.View]) -> Table:
    """A row for each point."""
    rows = list[list[Cell]]()
    for view in views:
        entry, state = view.entry, view.state
        elapsed = time.time() - state.started_at if entry.status == "running" and state.started_at else state.elapsed_s
        status = ("doubtful", "yellow") if state.doubtful else (entry.status, COLOURS[entry.status])
        step = f"{state.step}/{state.steps}" if state.steps else ""
        score = f"{label(state.last.name)} {state.last.shown}" if state.last else ""
        elapsed_text, folder = clock(elapsed) if state.started_at else "", os.path.relpath(view.folder.path)
        rows.append([(entry.name, "bold"), status, step, score, elapsed_text, (folder, "dim")])
    return make_table(["point", "status", "step", "held out", "time", "folder"], rows)
