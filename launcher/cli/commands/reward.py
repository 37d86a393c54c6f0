"""`rlrun reward bench`: how a reward scores right, wrong and nonsensical answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Overrides
from launcher.cli.output import Cell, CommandAnswer, CommandGroup, make_table, out, say, say_problems, say_table
from launcher.cli.progress import show_data_progress
from launcher.core.numbers import compact
from launcher.core.redaction import printable
from launcher.preflight.checks.reward_trial import KINDS
from launcher.tools import reward_bench
from launcher.tools.reward_bench import AnswerKind, BenchReport

app = CommandGroup()


@app.command("bench")
def bench(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    rows: Annotated[int, typer.Option(min=1, help="Training rows that are scored.")] = 32,
) -> CommandAnswer:
    """Score gold, empty, wrong, overlong, format-only and prompt-injection answers: reward=gsm8k data=files ...

    Exit code 0 when a run can learn from the reward, 1 when it should not, 2 for invalid input.
    """
    run = reward_bench.run_of(overrides or [], config_dir)
    with show_data_progress() as watch:
        report = reward_bench.bench(run, rows, watch)
    return CommandAnswer({**asdict(report), "ok": report.ok}, lambda: _say_report(report), exit_code=int(not report.ok))


def _say_report(report: BenchReport) -> None:
    known = "" if report.gold_known else "; it does not define a right answer's form: the best of several forms counts"
    say(f"{report.reward} over {report.rows} rows{known}", "bold")
    head = ["answer", "", "n", "unscored", "mean", "min", "p50", "max", "zeros"]
    say_table(make_table(head, map(_kind_row, report.kinds), right=head[2:], whole=head))
    say(f"latency per answer  p50 {_milliseconds(report.latency_p50_s)}  p95 {_milliseconds(report.latency_p95_s)}")
    say(f"scored twice        {'equal' if report.deterministic else 'not equal'}")
    for line in report.faults:
        out.print(Text.assemble(("without a score  ", "yellow"), printable(line)), soft_wrap=True)
    for line in report.refused:
        out.print(Text.assemble(("refused  ", "yellow"), printable(line)), soft_wrap=True)
    for line in report.doubts:
        out.print(Text.assemble(("doubtful  ", "yellow"), printable(line)), soft_wrap=True)
    say_problems(report.wrong, out)
    if report.ok and not report.doubts:
        out.print(Text.assemble(("✓ ", "bold green"), "a run can learn from it"))


def _kind_row(kind: AnswerKind) -> list[Cell]:
    numbers = [compact(x) for x in (kind.mean, kind.low, kind.median, kind.high)]
    zeros = f"{kind.zeros:.0%}" if kind.zeros == kind.zeros else "nan"
    counts = str(kind.answers), str(kind.unscored)
    return [(kind.name, "bold"), (KINDS[kind.name].what, "dim"), *counts, *numbers, zeros]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
