"""`rlrun data check`: what a plan says of the first rows, said of all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.core.check_result import CheckResult, any_failed, from_problems
from launcher.data.refused import RefusedLog
from launcher.preflight.checks import reward, row_texts, rows, steps
from launcher.preflight.checks.context import Context
from launcher.preflight.fit import BATCH, fit_settings
from launcher.spec.algorithm import Kind
from launcher.spec.data import OnDataProgress, Split
from launcher.tools.datasets import Chosen


@dataclass(frozen=True)
class DataReport:
    """What is right and wrong with the rows."""

    name: str
    kind: Kind
    rows: dict[Split, int]
    refused: int
    results: list[CheckResult]
    log: Path | None
    """The file with every refused row; None where there is none."""

    @property
    def passed(self) -> bool:
        return not any_failed(self.results)


def check(chosen: Chosen, given: Collection[str], out: Path, watch: OnDataProgress) -> DataReport:
    """Read every row, and write those that are refused to refused.jsonl in `out`. Tokens are counted where a model was
    chosen. `given` are the settings that the user set. Raises `Problems`."""
    run = replace(chosen.run, data=chosen.data.fetched(watch))
    context = Context(run, here=True, every_row=True, has_model=chosen.has_model)
    if chosen.has_model:
        context = fit_settings(context, given)
    results = list(_check_rows(context, BATCH in given))
    refused = [*context.train.refused, *context.val.refused]
    log = out / "refused.jsonl" if refused else None
    (out / "refused.jsonl").unlink(missing_ok=True)  # of an earlier check
    if log:
        out.mkdir(parents=True, exist_ok=True)
        with RefusedLog(log) as kept:
            for row in refused:
                kept.keep(row)
    counts: dict[Split, int] = {"train": len(context.train.rows), "val": len(context.val.rows)}
    return DataReport(chosen.name, chosen.kind, counts, len(refused), results, log)


def _check_rows(context: Context, batch_given: bool) -> Iterator[CheckResult]:
    yield from from_problems([*context.data_problems, *context.reward_problems])
    yield from rows.check(context)
    yield from row_texts.check(context)
    yield from context.lengths.text
    if not (context.reward_problems or context.run.environment.scores):
        yield from reward.check_scorable(context)
    if batch_given and context.train.rows:  # otherwise a plan chooses a size that fits
        yield from (result for result in steps.check(context) if result.level == "FAIL" and result.subject == BATCH)
