"""`rlrun reward bench`: how a reward scores right, wrong and nonsensical answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Overrides
from launcher.cli.commands.data import watched
from launcher.cli.output import AsJson, out, printable, problems_named, say, say_json, say_problems
from launcher.monitor.console import compact
from launcher.tools import reward_bench
from launcher.tools.reward_bench import MEANING, BenchReport

app = typer.Typer(no_args_is_help=True, help="Test a reward before a run trains with it.")


@app.callback()
def main() -> None:
    """Test a reward before a run trains with it."""


@app.command("bench")
def bench(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Training rows that are scored.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Score gold, empty, wrong, overlong, format-only and prompt-injection answers: reward=gsm8k data=files ...

    Exit code 0 when a run can learn from the reward, 1 when it should not, 2 for invalid input.
    """
    with problems_named():
        run = reward_bench.run_of(overrides or [], config_dir)
        with watched() as watch:
            report = reward_bench.bench(run, rows, watch)
    if as_json:
        say_json({**asdict(report), "ok": report.ok})
    else:
        _say(report)
    raise typer.Exit(0 if report.ok else 1)


def _say(report: BenchReport) -> None:
    known = "" if report.gold_known else "; it does not define a right answer's form: the best of several forms counts"
    say(f"{report.reward} over {report.rows} rows{known}", "bold")
    out.print(_table(report))
    out.print(Text(f"latency per answer  p50 {_ms(report.latency_p50_s)}  p95 {_ms(report.latency_p95_s)}"))
    out.print(Text(f"scored twice        {'equal' if report.deterministic else 'not equal'}"))
    for line in report.faults:
        out.print(Text.assemble(("without a score  ", "yellow"), printable(line)), soft_wrap=True)
    say_problems(report.wrong, out)
    if report.ok:
        out.print(Text.assemble(("✓ ", "bold green"), "a run can learn from it"))


def _table(report: BenchReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("answer", "", "n", "unscored", "mean", "min", "p50", "max", "zeros"):
        table.add_column(name, justify="right" if name not in ("answer", "") else "left")
    for kind in report.kinds:
        numbers = [compact(x) for x in (kind.mean, kind.low, kind.median, kind.high)]
        zeros = f"{kind.zeros:.0%}" if kind.zeros == kind.zeros else "nan"
        table.add_row(
            Text(kind.name, "bold"), Text(MEANING[kind.name], "dim"), str(kind.answers), str(kind.unscored), *numbers,
            zeros,
        )  # fmt: skip
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
