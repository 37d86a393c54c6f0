"""`rlrun metrics LOG-OR-RUN`: the numbers of a run of ours, or of a log that another program wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import LogOrRunName, Root
from launcher.cli.output import AsJson, Cell, json_safe, make_table, out, say, say_table, tell, write_csv
from launcher.cli.plot import sparkline
from launcher.core.events import Step, writable
from launcher.core.metric_aliases import canonical
from launcher.core.metrics import metric
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.views import series
from launcher.views.read import LogOrRun, find
from launcher.views.trace import Trace, shortened

SPARKS = 12
Steps = Callable[[], Iterator[Step]]
"""Reads the chosen steps from the beginning."""


def metrics(
    name: LogOrRunName,
    keys: Annotated[
        str, typer.Option(metavar="A,B", help="Only these metrics, by name, other spelling, or pattern.")
    ] = "",
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N steps, one row each.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Only this step, all its metrics.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row of comma-separated values for each step.")] = False,
    as_json: AsJson = False,
    root: Root = Path("runs"),
) -> None:
    """Logs may be of any size and still growing. The names are those of the log; --keys knows them also by the names
    that rlrun, verl and TRL have for them: reward is critic/score/mean.
    """
    wanted_keys = [key.strip() for key in keys.split(",") if key.strip()]
    if as_csv and as_json:
        raise Problems(Problem("--csv", "cannot go with --json", "use one of them"))
    if step is not None and last is not None:
        raise Problems(Problem("--step", "cannot go with --last", "use one of them"))
    source = find(name, root)
    steps: Steps = partial(source.steps, cache(partial(tell, style="yellow")))  # a note is printed once
    if not any(each.metrics for each in steps()):
        raise Problems(source.no_metrics)
    if last is not None:
        steps = partial(iter, source.last_steps(last))
    elif step is not None:
        values = series.values_of_step(steps(), step)
        steps = partial(iter, [Step(step=step, metrics=values)])
    if as_csv:
        _print_csv(steps, wanted_keys)
    elif as_json:
        _print_json(steps, wanted_keys)
    elif step is not None:
        _show_step(values, step, wanted_keys)
    elif last is not None:
        _show_last(list(steps()), wanted_keys)
    else:
        _show_all(source, steps, wanted_keys)


def _show_step(values: dict[str, float], number: int, keys: Sequence[str]) -> None:
    series.check_keys(keys, values)
    rows: list[tuple[Cell, ...]] = []
    for name in series.chosen_names(values, keys) if keys else values:
        entry, value = metric(canonical(name)), values[name]
        whole = value == value and abs(value) < 1e15 and value == int(value)
        meaning = (entry.meaning if entry else "", "dim")
        rows.append((name, (str(int(value)) if whole else repr(value), "bold"), meaning))
    say_table(make_table([f"step {number}", "value", "meaning"], rows, right=["value"], whole=["value"]))


def _show_last(steps: Sequence[Step], keys: Sequence[str]) -> None:
    names = list(dict.fromkeys(name for each in steps for name in each.metrics))
    series.check_keys(keys, names)
    columns = series.chosen_names(names, keys) if keys else [*series.overview(steps, [])[0]] or names
    right_edges = accumulate(max(len(printable(name)), 10) + 2 for name in columns)
    if out.is_terminal and (count := max(sum(end <= out.width - 8 for end in right_edges), 1)) < len(columns):
        if keys:
            tell(f"{len(columns) - count} more metrics do not fit beside these; --csv has all")
        columns = columns[:count]
    head = ["step", *map(printable, columns)]
    rows = [
        [str(each.step), *(compact(each.metrics[name]) if name in each.metrics else "" for name in columns)]
        for each in steps
    ]
    say_table(make_table(head, rows, right=head, whole=head[:1]))


def _show_all(source: LogOrRun, steps: Steps, keys: Sequence[str]) -> None:
    shown, names, last_step = series.overview(steps(), keys)
    series.check_keys(keys, names)
    if not shown:  # no metric of the log is known to be important
        shown, *_ = series.overview(steps(), sorted(names)[: series.TELLING])
    count = f"{len(names)} metrics" + (f", {len(shown)} shown" if len(names) > len(shown) else "")
    say(f"{source.title}  ·  {source.kind}  ·  to step {last_step}  ·  {count}", "dim")
    numbers = ("first", "last", "best", "at")
    rows = [_metric_row(name, trace) for name, trace in shown.items()]
    say_table(make_table(["metric", *numbers, ""], rows, right=numbers, whole=[*numbers, ""]))


def _metric_row(name: str, trace: Trace) -> list[Cell]:
    best, title = series.best_value(name, trace), Text(printable(name))
    if trace.not_finite:
        title.append(f"\n{trace.not_finite} not finite", "bold red")
    curve = sparkline(shortened([value for _, value in trace.curve], SPARKS))
    numbers: list[Cell] = [compact(trace.first), (compact(trace.latest), "bold"), compact(best[0]) if best else ""]
    return [title, *numbers, (str(best[1]) if best else "", "dim"), (curve, "cyan")]


def _print_csv(steps: Steps, keys: Sequence[str]) -> None:
    names = series.names_of(steps(), keys)
    nodes = series.step_nodes(steps(), names)
    rows = ([step, *(repr(values[name]) if name in values else "" for name in names)] for step, values in nodes)
    write_csv(["step", *names], rows)


def _print_json(steps: Steps, keys: Sequence[str]) -> None:
    """Print a list of `{"step": ..., "metrics": {...}}`, a step a line, while reading: a log may be of any size."""
    separator = "["
    for step, values in series.step_nodes(steps(), series.names_of(steps(), keys) if keys else None):
        node = {"step": step, "metrics": {printable(name): value for name, value in values.items()}}
        typer.echo(separator + "\n " + json_safe(json.dumps(writable(node), allow_nan=False)), nl=False)
        separator = ","
    typer.echo("[]" if separator == "[" else "\n]")
