"""`rlrun runs | show | status | watch | logs | stop`: look at runs on disk, and end one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len

from launcher.cli.arguments import LogOrRunName, Root, RunName
from launcher.cli.live_view import colour, picture, watching
from launcher.cli.log_view import tail, watch_log
from launcher.cli.output import AsJson, Cell, CommandAnswer, json_safe, make_table, out, say, say_table
from launcher.core import checkpoints
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.monitor.console import next_command
from launcher.runs import store
from launcher.runs.folder import Attempt, holder, read_attempts
from launcher.views import runs as views
from launcher.views.read import find
from launcher.views.record import record_of

SWEEP = "sweep.json"  # the file in a sweep's folder
LEAST, GAP = 60, 2  # characters: least width the table is made for, and space between its columns


def list_runs(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only runs with this in their name or algorithm.")] = "",
    root: Root = Path("runs"),
    status: Annotated[str, "Only runs of this status: running, failed, ..."] = "",
    sort: Annotated[views.Order, "What decides the order."] = "started",
) -> CommandAnswer:
    matching = views.picked(list(store.every(root)), text, status, sort)
    return CommandAnswer([views.run_node(run) for run in matching], lambda: _say_runs(matching, root))


def _say_runs(matching: list[store.Run], root: Path) -> None:
    if not matching:
        return say(f"no runs in {root}", "dim")
    texts = [views.run_row(run) for run in matching]
    columns = fitting_columns(texts, max(out.width, LEAST)) if out.is_terminal else list(texts[0])
    styles = [{"run": "bold", "status": colour(run.state)} for run in matching]
    rows: list[list[Cell]] = [
        [(row[name], style.get(name, "")) for name in columns] for row, style in zip(texts, styles, strict=True)
    ]
    return say_table(make_table(columns, rows))


def fitting_columns(rows: list[dict[str, str]], width: int) -> list[str]:
    """The columns that fit into `width`, most important first. Long run names are cut in the middle, in `rows`."""
    limit, fitting, room = max(width * 2 // 5, 20), list[str](), width + GAP
    for row in rows:
        name = row["run"]
        row["run"] = name if len(name) <= limit else f"{name[: limit // 2]}…{name[-((limit - 1) // 2) :]}"
    for column in rows[0]:
        needed = max(cell_len(text) for text in (column, *(row[column] for row in rows))) + GAP
        if needed <= room and any(row[column] for row in rows):
            fitting.append(column)
            room -= needed
    return fitting


def show(name: LogOrRunName, root: Root = Path("runs")) -> CommandAnswer:
    def page(run: store.Run) -> CommandAnswer:
        tried = read_attempts(run.folder)
        return CommandAnswer({**views.run_node(run), "attempts": tried}, lambda: _say_run(run, tried))

    return _answer_of(name, root, page)


def status(name: LogOrRunName, root: Root = Path("runs")) -> CommandAnswer:
    def line(run: store.Run) -> CommandAnswer:
        return CommandAnswer(views.run_node(run), lambda: say(views.status_line(run.folder.name, run.state)))

    return _answer_of(name, root, line)


def _answer_of(name: str, root: Path, answer: Callable[[store.Run], CommandAnswer]) -> CommandAnswer:
    """The answer for the run of that name, or for a log as a run; for a sweep, the state of each point."""
    if sweep := store.named(name, root, SWEEP):
        from launcher.cli.commands.sweep import answer_sweep  # noqa: PLC0415  # late: it loads what plans runs

        return answer_sweep(sweep.path)
    source = find(name, root)
    return answer(store.Run(source.folder, record_of(source).state) if source.log else store.see(source.folder))


def _say_run(run: store.Run, tried: list[Attempt]) -> None:
    out.print(picture(run.state, time.time()))
    count_text = f"  ·  {len(tried)} attempt{'s' * (len(tried) != 1)}" if tried else ""
    say(f"{run.folder.path}{count_text}", "dim")
    if tried:
        running = run.state.status == "running"
        rows = [_attempt_row(attempt, running and attempt is tried[-1]) for attempt in tried]
        say_table(make_table(["attempt", "ended", "step", "cause", "why"], rows))
    if aside := checkpoints.set_aside(run.folder.checkpoints):
        steps = ", ".join(str(step) for step, _ in aside)
        say(f"checkpoints set aside: of step {steps}; rlrun checkpoints list {run.folder.path} says why", "dim")
    if run.state.following:
        say(f"next: {next_command(run.state.following, str(run.folder.path))}")


def _attempt_row(attempt: Attempt, is_running: bool) -> tuple[str, ...]:
    name, step = attempt.name.removeprefix("attempt_"), str(attempt.step)
    if attempt.ended is None:
        return name, "", step, "" if is_running else "not recorded", ""
    ended_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attempt.ended))
    return name, ended_at, step, *(" ".join(text.splitlines()) for text in (attempt.cause, attempt.why))


def watch(name: LogOrRunName, root: Root = Path("runs")) -> None:
    """Ctrl-C ends the watching, not the run.

    A log that another program writes (verl, TRL, ...) is followed until Ctrl-C. The exit code is 0 whatever the run's
    is. Without a terminal it prints what logs -f prints.
    """
    if sweep := store.named(name, root, SWEEP):
        raise Problems(Problem(str(sweep.path), "is a sweep", "use rlrun status, or watch one of its runs"))
    if name == "-":
        raise Problems(Problem("watch", "standard input cannot be followed", "use the path of the log"))
    source = find(name, root)
    if not (source.log or out.is_terminal):
        return logs(name, root, follow=True)
    with suppress(KeyboardInterrupt):
        if source.log:
            watch_log(source.log)
        else:
            with watching() as view:
                store.watch(source.folder, [view])
    return None


def logs(
    name: RunName,
    root: Root = Path("runs"),
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the run ends.")] = False,
    last: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Start with the last N lines.")] = None,
    as_json: AsJson = False,
) -> None:
    folder = store.find(name, root)
    path = folder.events if as_json else folder.console
    try:
        for text in tail(path, (lambda: holder(folder) is not None) if follow else None, last):
            typer.echo(json_safe(text) if as_json else printable(text))
    except (KeyboardInterrupt, BrokenPipeError):
        raise typer.Exit(0) from None


def stop(
    name: RunName,
    root: Root = Path("runs"),
    now: Annotated[bool, "Stop at once, without a checkpoint."] = False,
) -> CommandAnswer:
    folder = store.named(name, root, SWEEP) or store.find(name, root)
    became = store.stop(folder, now=now)
    return CommandAnswer({"run": folder.name, "became": became}, lambda: say(f"{folder.name}: {became}"))
