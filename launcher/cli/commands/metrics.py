"""`rlrun metrics LOG-OR-RUN`: the numbers of a run of ours, or of a log that another program wrote."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import Root, complete_run
from launcher.cli.live_view import sparkline
from launcher.cli.log_or_run import LogOrRun, find
from launcher.cli.metric_table import TELLING, Column, check_keys, chosen_names, summary
from launcher.cli.output import AsJson, make_table, out, printable, problems_named, say, say_table
from launcher.cli.plot import plot, shortened
from launcher.core.events import Step, writable
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import label, metric
from launcher.core.problems import Problem, Problems
from launcher.monitor.console import compact

PLOTTED = 3  # most metrics that are drawn as a plot
SPARKS = 24
NARROW = 110  # columns of a terminal under which a table has no labels

LogOrRunName = Annotated[
    str,
    typer.Argument(
        metavar="LOG-OR-RUN",
        help="A log file, - for standard input, or a run: its folder, project/experiment, or experiment.",
        autocompletion=complete_run,
    ),
]  # fmt: skip


def metrics(
    name: LogOrRunName,
    keys: Annotated[
        str, typer.Option("--keys", metavar="A,B", help="Only these metrics, by name, other spelling, or pattern.")
    ] = "",
    last: Annotated[int | None, typer.Option("--last", min=1, help="Only the last N steps, one row each.")] = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only this step, all its metrics.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row of comma-separated values for each step.")] = False,
    as_json: AsJson = False,
    root: Root = Path("runs"),
) -> None:
    """Show the metrics of a run, or of a log that verl, TRL or another program wrote: curves, steps, or all values.

    Logs may be of any size and still growing. The names are those of the log; --keys knows them also by the names that
    rlrun, verl and TRL have for them: reward is critic/score/mean.
    """
    wanted = [key.strip() for key in keys.split(",") if key.strip()]
    with problems_named():
        if as_csv and as_json:
            raise Problems(Problem("--csv", "cannot go with --json", "use one of them"))
        if step is not None and last is not None:
            raise Problems(Problem("--step", "cannot go with --last", "use one of them"))
        source = find(name, root)
        found = {} if step is None else _only(source, step)
        if as_csv or as_json:
            steps = _Chosen(source, last, step)
            (_print_csv if as_csv else _print_json)(steps, wanted)
        elif step is not None:
            _show_step(found, step, wanted)
        elif last is not None:
            _show_last(_last(source, last), wanted)
        else:
            _show_all(source, wanted)


class _Chosen:
    """The steps that were chosen, as often as they are gone through."""

    def __init__(self, source: LogOrRun, last: int | None, step: int | None) -> None:
        self._source, self._step = source, step
        self._last = None if last is None else _last(source, last)

    def __iter__(self) -> Iterator[Step]:
        steps = self._source.steps() if self._last is None else iter(self._last)
        return steps if self._step is None else (each for each in steps if each.step == self._step)


def _last(source: LogOrRun, count: int) -> list[Step]:
    return source.log.last_steps(count) if source.log else list(deque(source.steps(), count))


def _only(source: LogOrRun, number: int) -> dict[str, float]:
    """All metrics of a step; those of its later lines count. Raises `Problems` where there is no such step."""
    found, least, greatest = dict[str, float](), math.inf, -1
    for each in source.steps():
        least, greatest = min(least, each.step), max(greatest, each.step)
        if each.step == number:
            found |= each.metrics
    if greatest < 0:
        raise Problems(no_metrics(source))
    if not found:
        got = f"no such step; the steps are {least} to {greatest}"
        raise Problems(Problem(f"step {number}", got, f"use --step {greatest}", "not-found"))
    return found


def _show_step(found: dict[str, float], number: int, keys: Sequence[str]) -> None:
    check_keys(keys, found)
    names = chosen_names(found, keys) if keys else list(found)
    table = make_table(f"step {number}", "value", "meaning", right=("value",), whole=("value",))
    for name in names:
        known = metric(canonical(name))
        meaning = Text(known.meaning if known else "", "dim")
        table.add_row(Text(printable(name)), Text(_exact(found[name]), "bold"), meaning)
    say_table(table)


def _show_last(steps: Sequence[Step], keys: Sequence[str]) -> None:
    names = dict.fromkeys(chain.from_iterable(each.metrics for each in steps))
    check_keys(keys, names)
    if keys:
        columns = chosen_names(names, keys)
    else:
        columns = [column.name for column in summary(steps, [])[0]] or list(names)
        columns = _fitting(columns) if out.is_terminal else columns
    rows = [[str(each.step), *(_cell(each, name) for name in columns)] for each in steps]
    heads = ["step", *map(printable, columns)]
    room = max((out.width - 40) // 12, 1)  # for steps beside the longest names
    if turned := out.is_terminal and len(_fitting(columns)) < len(columns) and len(steps) <= room:  # a row a metric
        heads, *rows = map(list, zip(heads, *rows, strict=True))
    table = make_table(*heads, right=tuple(heads[turned:]), whole=tuple(heads[:1]))
    for row in rows:
        table.add_row(*row)
    say_table(table)


def _cell(step: Step, name: str) -> str:
    return compact(step.metrics[name]) if name in step.metrics else ""


def _fitting(names: Sequence[str]) -> list[str]:
    """The first of them that a terminal has room for, beside the step."""
    ends = accumulate(max(len(printable(name)), 10) + 2 for name in names)
    return [name for name, end in zip(names, ends, strict=True) if end <= out.width - 8] or [*names[:1]]


def _show_all(source: LogOrRun, keys: Sequence[str]) -> None:
    steps = 0

    def counted() -> Iterator[Step]:
        nonlocal steps
        for step in source.steps():
            steps = max(steps, step.step)
            yield step

    columns, names = summary(counted(), keys)
    if not names:
        raise Problems(no_metrics(source))
    check_keys(keys, names)
    if not columns:  # none that is known to tell something
        columns, _ = summary(source.steps(), sorted(names)[:TELLING])
    count = f"{len(names)} metrics, {len(columns)} shown" if len(names) > len(columns) else f"{len(names)} metrics"
    say(f"{source.title}  ·  {source.kind}  ·  to step {steps}  ·  {count}", "dim")
    if keys and len(columns) <= PLOTTED:
        for column in columns:
            say(_title(column))
            for line in plot(column.curve, min(out.width, 100) if out.is_terminal else 100):
                say(line, "cyan")
        return
    numbers, narrow = ("first", "last", "best", "at"), out.is_terminal and out.width < NARROW
    table = make_table("metric", *([] if narrow else [" "]), *numbers, "", right=numbers, whole=(" ", *numbers, ""))
    for column in columns:
        table.add_row(*_row(column, narrow))
    say_table(table)


def _row(column: Column, narrow: bool) -> tuple[Text, ...]:
    """Where the screen is narrow, without the label and with a shorter curve."""
    short = label(canonical(column.name))
    best = column.best
    name, lost = Text(printable(column.name)), Text()
    if column.not_finite:
        lost = Text(f"{column.not_finite} not finite", "bold red")
    cells = (
        Text(compact(column.first)), Text(compact(column.last), "bold"), Text(compact(best[0]) if best else ""),
        Text(str(best[1]) if best else "", "dim"),
    )  # fmt: skip
    points = column.trace.points()
    if narrow:
        name = Text("\n").join([name, lost]) if lost else name
        return name, *cells, Text(sparkline(shortened(points, SPARKS // 2)), "cyan")
    curve = Text.assemble((sparkline(shortened(points, SPARKS)), "cyan"), "  ", lost)
    return name, Text(printable(short if short != column.name else ""), "dim"), *cells, curve


def _title(column: Column) -> str:
    best = f", best {compact(column.best[0])} at step {column.best[1]}" if column.best else ""
    lost = f", {column.not_finite} not finite" if column.not_finite else ""
    return f"{column.name}: first {compact(column.first)}, last {compact(column.last)}{best}{lost}"


def no_metrics(source: LogOrRun) -> Problem:
    """What to say of a log or run without any step."""
    if source.log is None:
        return Problem(source.title, "the run has no step yet", "use rlrun status to see where it is", "not-found")
    got = "no line with metrics that is known here"
    return Problem(source.title, got, "use a log of verl, TRL or rlrun, or lines such as `Step 1/10 | Loss: 0.5`")


def _print_csv(steps: _Chosen, keys: Sequence[str]) -> None:
    names = set[str]()
    for each in steps:
        names.update(each.metrics)
    check_keys(keys, names)
    columns = chosen_names(names, keys)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["step", *map(printable, columns)])
    for each in steps:
        row = [repr(each.metrics[name]) if name in each.metrics else "" for name in columns]
        if any(row):
            writer.writerow([each.step, *row])


def _print_json(steps: _Chosen, keys: Sequence[str]) -> None:
    """A list of `{"step": ..., "metrics": {...}}`, a step a line, written as it is read."""
    names, before = set[str](), "["
    for each in steps if keys else ():
        names.update(each.metrics)
    check_keys(keys, names)
    columns = chosen_names(names, keys)
    for each in steps:
        found = {name: each.metrics[name] for name in columns if name in each.metrics} if keys else each.metrics
        if found:
            node = {"step": each.step, "metrics": {printable(name): value for name, value in found.items()}}
            typer.echo(before + "\n " + json.dumps(writable(node), allow_nan=False), nl=False)
            before = ","
    typer.echo("[]" if before == "[" else "\n]")


def _exact(value: float) -> str:
    return str(int(value)) if value == value and abs(value) < 1e15 and value == int(value) else repr(value)
