"""`rlrun report | compare`: what a run came to, as a page, and whether runs differ."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import LogOrRunName, Root
from launcher.cli.output import Cell, CommandAnswer, make_table, say, say_table
from launcher.core.problems import Problem, Problems
from launcher.reports.comparison import Comparison, compare_runs
from launcher.reports.report import Report, check_output, make_report, write_report
from launcher.views.read import find
from launcher.views.record import record_of

Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Page to write; default: in the run's folder, or beside the log."),
]


def report(
    name: LogOrRunName,
    goal: Annotated[float | None, "What the last held-out score should reach, such as 0.55."] = None,
    out: Out = None,
    _page: Annotated[bool, typer.Option("--page", hidden=True)] = False,  # typed for what is written anyway
    root: Root = Path("runs"),
) -> CommandAnswer:
    """It is read from the run's folder, or the log, alone, and may be made while the run goes on."""
    if goal is not None and not isfinite(goal):
        raise Problems(Problem("--goal", f"got {goal}", "use a number, such as 0.55"))
    source = find(name, root)
    beside_log = source.folder.path.with_name(f"{source.folder.path.name}.report.html")
    page = out or (beside_log if source.log else source.folder.path / "report.html")
    if name == "-" and not out:
        raise Problems(Problem("--out", "standard input has no folder for a page", "use --out FILE.html"))
    check_output(page)
    content = make_report(record_of(source), goal)
    write_report(content, page)
    return CommandAnswer(content.node, lambda: _say_report(content, page))


def _say_report(content: Report, page: Path) -> None:
    say(f"{content.record.name}: {content.intro}")
    say(content.record.verdict.line)
    if content.goal.goal:
        say(content.goal.title)
    for line in content.goal.lines:
        say(f"  {line}")
    say(f"checklist: {content.counts}")
    for row in content.checklist:
        if row.status == "fail":
            say(f"  {row.name}: {'; '.join(filter(None, (row.figure, row.note)))}")
    for problem in content.problems:
        say(f"  ✗ {problem}")
    say(f"wrote {page}")


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG-OR-RUN...",
            help="Runs, logs, or a sweep: by what differs but for the seed.",
        ),
    ],
    root: Root = Path("runs"),
) -> CommandAnswer:
    comparison = compare_runs(names, root)
    return CommandAnswer(comparison.node, lambda: _say_comparison(comparison))


def _say_comparison(comparison: Comparison) -> None:
    for letter, side in comparison.sides.items():
        label = comparison.label(letter)
        say(f"{letter}  {f'{label}: ' if label else ''}{', '.join(record.name for record in side)}")
    for line in comparison.notes:
        say(f"✗ {line}")
    if comparison.settings:
        say("")
        rows: list[list[Cell]] = [[(name, "bold"), *values] for name, *values in comparison.settings]
        say_table(make_table(["setting", *comparison.sides], rows, whole=["setting"]))
    say("")
    rows = [[(name, "bold"), *cells] for name, *cells in comparison.results]
    say_table(make_table(["result", *comparison.sides], rows, whole=["result"]))
    say("")
    for test in comparison.tests:
        say(test.text)
    for line in comparison.remarks:
        say(line, "dim")
