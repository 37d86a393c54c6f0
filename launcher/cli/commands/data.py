"""`rlrun data prepare | check | show`: datasets before a run trains on them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Overrides
from launcher.cli.output import CommandAnswer, CommandGroup, out, say, say_checks
from launcher.cli.progress import show_data_progress
from launcher.core.check_result import CheckResult
from launcher.core.redaction import printable
from launcher.data.prepare import PreparedData
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row, Split, prompt_node
from launcher.tools import data_check as checking
from launcher.tools import datasets
from launcher.tools.data_check import DataReport

MANY = 10_000  # with at least so many rows the speed is shown

app = CommandGroup()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Choice of conf/data, file or glob, or hub id (owner/name).")]
For = Annotated[Kind | None, typer.Option("--for", help="How the rows are used: answers, pairs, prompts or mixed.")]


@app.command("prepare")
def prepare(
    name: Name,
    overrides: Overrides = None,
    kind: For = None,
    into: Annotated[Path | None, typer.Option("--out", help="Folder; default: ./NAME.")] = None,
    config_dir: ConfigDir = None,
) -> CommandAnswer:
    """Write rows as parquet with verl's columns. Bad rows are named."""
    begun = time.monotonic()
    dataset = datasets.chosen(name, kind, overrides or [], config_dir)
    with show_data_progress() as watch:
        folder = into or Path(dataset.name)
        prepared_data = datasets.made_ready(dataset, watch, folder)
        unread = datasets.unread(dataset, watch)
    view = {"folder": folder, **asdict(prepared_data), "unread": unread}
    return CommandAnswer(view, lambda: _say_prepared(folder, prepared_data, unread, time.monotonic() - begun))


def _say_prepared(folder: Path, prepared_data: PreparedData, unread: Sequence[CheckResult], seconds: float) -> None:
    total = sum(prepared_data.rows.values())
    rows = ", ".join(f"{count:,} {split} rows" for split, count in prepared_data.rows.items())
    refused = f", {prepared_data.refused:,} refused" if prepared_data.refused else ""
    took = f" in {seconds:.0f} s, {total / seconds:,.0f} rows/s" if total >= MANY else ""
    say_checks(unread)
    say(f"✓ {rows}{refused}{took}", "green")
    say(f"  {folder}")


@app.command("check")
def check(
    name: Name,
    overrides: Overrides = None,
    kind: For = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for refused.jsonl; default: check-NAME, if rows are bad."),
    ] = None,
    config_dir: ConfigDir = None,
) -> CommandAnswer:
    """Read every row as a run would. Exit code 1 where it should not be trained on. `model=...` counts tokens."""
    dataset = datasets.chosen(name, kind, overrides or [], config_dir)
    given = {word.partition("=")[0] for word in overrides or []}
    with show_data_progress() as watch:
        report = checking.check(dataset, given, to or Path(f"check-{dataset.name}"), watch)
    view = {**asdict(report), "passed": report.passed}
    return CommandAnswer(view, lambda: _say_report(report), exit_code=int(not report.passed))


def _say_report(report: DataReport) -> None:
    rows = ", ".join(f"{count:,} {split} rows" for split, count in report.rows.items() if count)
    out.print(Text(printable(f"{report.name}: {rows or 'no rows'} as {report.kind}, {report.refused:,} refused")))
    say_checks(report.results)
    say(*("✓ can be trained on", "bold green") if report.passed else ("✗ should be fixed first", "bold red"))
    if report.log:
        say(f"  {report.log}", "dim")


@app.command("show")
def show(
    name: Name,
    overrides: Overrides = None,
    kind: For = None,
    count: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows.")] = 3,
    split: Annotated[Split, "Split: train or val."] = "train",
    config_dir: ConfigDir = None,
) -> CommandAnswer:
    """Print the first rows as a run reads them."""
    dataset = datasets.chosen(name, kind, overrides or [], config_dir)
    with show_data_progress() as watch:
        rows = list(islice(dataset.data.fetched(watch).rows(split, dataset.kind), count))
    if not rows:
        return CommandAnswer(rows, lambda: say(f"{dataset.name} has no {split} rows", "dim"))
    return CommandAnswer([_node(row) for row in rows], lambda: list(map(_say_row, rows)))


def _node(row: Row | RefusedRow) -> dict[str, Any]:
    if isinstance(row, RefusedRow):
        return asdict(row)
    empty = [name for name in ("template_args", "response_extra", "rejected_extra") if not getattr(row, name)]
    fields = {name: value for name, value in asdict(row).items() if name not in empty}
    return fields | {"prompt": prompt_node(row.prompt)}


def _say_row(row: Row | RefusedRow) -> None:
    say(row.where, "bold")
    if isinstance(row, RefusedRow):
        say(f"  ✗ {printable(row.reason)}", "red")
        return
    turns: list[tuple[str, str | None]] = [(name, json.dumps(value)) for name, value in row.template_args.items()]
    turns += [("user", row.prompt)] if isinstance(row.prompt, str) else []
    for turn in () if isinstance(row.prompt, str) else row.prompt:
        others = ((f"{turn.role} {key}", json.dumps(value)) for key, value in turn.extra.items())
        turns += [(turn.role, turn.content), *others]
    more = {"chosen" if row.rejected else "assistant": row.response, "rejected": row.rejected}
    more |= {"ground_truth": row.ground_truth, "data_source": row.data_source, "ability": row.ability or None}
    for label, text in [*turns, *more.items()]:
        if text is not None:
            out.print(Text.assemble((f"  {printable(label)}: ", "cyan"), printable(text)), soft_wrap=True)
