"""`rlrun runs | show | status | watch | logs | stop`: look at runs on disk, and end one."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli.arguments import Root, RunName
from launcher.cli.commands.sweep import say_sweep
from launcher.cli.live_view import colour, picture, watching
from launcher.cli.log_or_run import not_found, state_in
from launcher.cli.log_view import watch_log
from launcher.cli.output import AsJson, make_table, out, printable, problems_named, say, say_json, wide
from launcher.clusters.ray import remote
from launcher.core.files import NewLines
from launcher.core.metrics import label
from launcher.core.problems import Problem, Problems
from launcher.launch.sweeps import points
from launcher.monitor.console import clock, compact, date, held_out, held_out_change, next_command
from launcher.runs import store
from launcher.runs.folder import Attempt, holder, read_attempts

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Run the command on the head of this Ray cluster; auto: the cluster of this machine.",
    ),
]

POLL_S = 0.2
COLUMNS = {
    "run": 0, "algorithm": 130, "started": 100, "took": 100, "status": 0, "step": 0, "training": 130, "held out": 0,
    "change": 0, "at first": 160, "best": 160,
}  # fmt: skip
"""Of the list of runs, and the width of a terminal from which each is shown."""


def list_runs(root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs, the latest first."""
    found = list(store.every(root))
    if as_json:
        return say_json([_node(run) for run in found])
    if not found:
        say(f"no runs in {root}", "dim")
        return None
    console = wide()
    columns = [name for name, width in COLUMNS.items() if width <= console.width]
    table = make_table(*columns)
    for run in found:
        cells = _cells(run)
        table.add_row(*(cells[name] for name in columns))
    console.print(table)
    return None


def _cells(run: store.Run) -> dict[str, Text]:
    state = run.state
    texts = {
        "algorithm": state.algorithm,
        "started": date(state.started_at),
        "took": clock(state.elapsed_s),
        "step": f"{state.step}/{state.steps}",
        "training": "" if state.score is None else f"{label(state.score_name)} {compact(state.score)}",
        "held out": f"{label(state.last.name)} {state.last.shown}" if state.last else "",
        "at first": state.first.shown if state.first else "",
        "best": f"{state.best.shown} at {state.best.step}" if state.best else "",
        "change": held_out_change(state),
    }
    status = Text("doubtful" if state.doubtful else state.status, colour(state))
    return {
        "run": Text(printable(run.folder.name), "bold"), "status": status,
        **{name: Text(printable(text)) for name, text in texts.items()},
    }  # fmt: skip


def show(name: RunName, root: Root = Path("runs"), cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Show what a run came to and how its attempts ended, or each point of a sweep."""
    if cluster is not None:
        _on_head(cluster, "show", name, root, *(["--json"] if as_json else []))
    with problems_named():
        if found := points.find(name, root):
            return say_sweep(found, as_json)
        run = store.see(store.find(name, root))
    tried = read_attempts(run.folder)
    if as_json:
        return say_json({**_node(run), "attempts": [asdict(attempt) for attempt in tried]})
    out.print(picture(run.state, time.time()))
    where = printable(str(run.folder.path))
    say(f"{where}  ·  {len(tried)} attempt{'s' * (len(tried) != 1)}", "dim")
    if tried:
        wide().print(_attempts(tried, run.state.status == "running"))
    if run.state.following:
        say(f"next: {next_command(run.state.following, str(run.folder.path))}")
    return None


def status(name: RunName, root: Root = Path("runs"), cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Print where a run stands on one line, or each point of a sweep."""
    if cluster is not None:
        _on_head(cluster, "status", name, root, *(["--json"] if as_json else []))
    with problems_named():
        if found := points.find(name, root):
            return say_sweep(found, as_json)
        run = store.see(store.find(name, root))
    state = run.state
    if as_json:
        return say_json(_node(run))
    left = f", {clock(state.eta_s)} left" if state.status == "running" and state.eta_s is not None else ""
    parts = [
        f"{run.folder.name}: {'doubtful' if state.doubtful else state.status}", f"step {state.step}/{state.steps}",
        f"{clock(state.elapsed_s)}{left}",
        *([] if state.score is None else [f"{label(state.score_name)} {compact(state.score)}"]),
        *([f"held out {held_out(state)}"] if state.last else []), *([state.stalled or state.why or state.alert]),
    ]  # fmt: skip
    return say("; ".join(part for part in parts if part))


def _attempts(tried: list[Attempt], running: bool) -> Table:
    table = make_table("attempt", "ended", "step", "cause", "why")
    for number, attempt in enumerate(tried, start=1):
        name, ended = Text(printable(attempt.name.removeprefix("attempt_"))), attempt.ended
        if ended is None:
            table.add_row(name, "", "", "" if running and number == len(tried) else "not recorded", "")
        else:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended.at))
            cause, why = (Text(printable(" ".join(text.splitlines()))) for text in (ended.cause, ended.why))
            table.add_row(name, at, str(ended.step), cause, why)
    return table


def watch(name: RunName, root: Root = Path("runs"), cluster: Cluster = None) -> None:
    """Watch a run until it ends, from any machine that sees its folder or its cluster. Ctrl-C ends the watching, not
    the run.

    RUN may also be a log that another program writes (verl, TRL, ...): it is followed until Ctrl-C. The exit code is 0
    whatever the run's is. Without a terminal, or with --cluster, it prints what logs -f prints.
    """
    if cluster is not None:
        _on_head(cluster, "watch", name, root)
    if os.path.isfile(name):
        with problems_named(), suppress(KeyboardInterrupt):
            watch_log(Path(name))
        return None
    with problems_named():
        if found := points.find(name, root):
            raise Problems(Problem(str(found), "is a sweep", "use rlrun status, or watch one of its runs"))
        folder = store.named(name, root)
        if folder is None and (state := state_in(name)):
            with suppress(KeyboardInterrupt):
                watch_log(state)
            return None
        if folder is None:
            raise Problems(not_found(name, root))
    if not out.is_terminal:
        return logs(name, root, follow=True)
    with suppress(KeyboardInterrupt), watching() as picturing:
        store.watch(folder, picturing)
    return None


def logs(
    name: RunName,
    root: Root = Path("runs"),
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new lines until the run ends.")] = False,
    last: Annotated[int | None, typer.Option("-n", "--lines", min=0, help="Start with the last N lines.")] = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's console log; with --json its events."""
    if cluster is not None:
        more = [*(["-f"] if follow else []), *([] if last is None else [f"-n{last}"]), *(["--json"] if as_json else [])]
        _on_head(cluster, "logs", name, root, *more)
    with problems_named():
        folder = store.find(name, root)
    path = folder.events if as_json else folder.console
    try:
        for text in _tail(path, (lambda: holder(folder) is not None) if follow else None, last):
            typer.echo(text if as_json else printable(text))
    except (KeyboardInterrupt, BrokenPipeError):
        raise typer.Exit(0) from None


def _tail(path: Path, alive: Callable[[], bool] | None, last: int | None) -> Iterator[str]:
    """The `last` whole lines, or all; with `alive`, new ones until it says no."""
    lines = NewLines(path)
    while True:
        going = alive() if alive else False
        yield from lines.read() if last is None else deque(lines.read(), last)
        if path.is_file():
            last = None
        if not going:
            return
        time.sleep(POLL_S)


def stop(
    name: RunName,
    root: Root = Path("runs"),
    now: Annotated[bool, typer.Option("--now", help="Stop at once, without a checkpoint.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Save and stop a run, or all running points of a sweep."""
    if cluster is not None:
        _on_head(cluster, "stop", name, root, *(["--now"] if now else []), *(["--json"] if as_json else []))
    with problems_named():
        folder = store.named(name, root, points.FILE) or store.find(name, root)
        became = store.stop(folder, now=now)
    if as_json:
        return say_json({"run": folder.name, "became": became})
    say(f"{folder.name}: {became}")
    return None


def _on_head(address: str, command: str, name: str, root: Path, *more: str) -> NoReturn:
    """The command as it would be typed on the cluster's head."""
    with problems_named():
        remote.become(address, [command, f"--root={root}", *more, "--", name], out.width)


def _node(run: store.Run) -> dict[str, Any]:
    state = run.state
    return {
        **asdict(state),
        "run": run.folder.name,
        "folder": os.fspath(run.folder.path),
        "seconds_per_step": state.seconds_per_step,
        "eta_s": state.eta_s,
    }
