"""The tables of a report: what is judged is what was measured, and figures of one table agree."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.events import Step
from launcher.reports.comparison import compare_runs
from launcher.reports.measures import ReportRow
from launcher.reports.report import make_report, write_report
from launcher.views.record import read_record


def pairs(held_out: str) -> list[Step]:
    """A training on pairs whose accuracy rises, while what is held out stays."""
    steps = [Step(at=10.0 + n, step=n, metrics={"rewards/accuracies": 0.5 + n / 20}) for n in range(1, 10)]
    return [
        Step(at=10.0, step=0, metrics={held_out: 0.1}), *steps, Step(at=20.0, step=10, metrics={held_out: 0.1})
    ]  # fmt: skip


def rows_of(make_run: Any, events: list[Any]) -> dict[str, ReportRow]:
    report = make_report(read_record(make_run(events)))
    return {row.name: row for row in (*report.checklist, *report.efficiency)}


@pytest.mark.parametrize(("held_out", "status"), [
    ("val-core/gsm8k/reward/mean@1", "not measured"),  # of answers: another measure than pairs
    ("val/rewards/accuracies", "no bound"),  # the same of held-out pairs
])  # fmt: skip
def test_an_accuracy_on_pairs_is_not_compared_with_a_score_of_answers(
    make_run: Any, logged: Any, held_out: str, status: str
) -> None:
    rows = rows_of(make_run, [*logged.begin(), *pairs(held_out)])
    assert rows["training score above the held-out one"].status == status


def test_training_scores_of_different_kinds_are_named(make_run: Any, logged: Any) -> None:
    scored = [*logged.begin(), Step(at=9.0, step=1, metrics={"critic/score/mean": 0.25})]
    runs = [make_run(scored, "one"), make_run(scored, "two"), make_run([*logged.begin(), *pairs(logged.mean)], "three")]
    for other, expected in ((runs[1], ("score 0.25",)), (runs[2], ("score 0.25; accuracy 0.75",))):
        found = compare_runs([str(runs[0].path), str(other.path)], other.path.parent.parent)
        assert ("training score, last steps", *expected) in found.results


@pytest.mark.parametrize(("first", "shown"), [(5, False), (6, True), (4, False)])
def test_a_best_validation_is_named_only_where_it_is_better_than_the_last(
    make_run: Any, logged: Any, first: int, shown: bool
) -> None:
    folder = make_run([*logged.begin(), logged.validated(1, first, 10), logged.validated(2, 5, 10)])
    write_report(make_report(read_record(folder)), folder.path / "report.html")
    assert ("best, at step 1" in (folder.path / "report.html").read_text()) is shown


@pytest.mark.parametrize(("logged_scores", "status"), [([0.0] * 4, "not measured"), ([0.0] * 10, "no bound")])
def test_a_few_logged_answers_do_not_judge_a_run(
    make_run: Any, logged: Any, logged_scores: list[float], status: str
) -> None:
    """`trainer.log_val_generations` is 4 by default."""
    step = logged.validated(1, 100, 256)
    run = make_run([*logged.begin(rows=256), *logged.answers(1, logged_scores), step])
    report = make_report(read_record(run), 0.9)
    (row,) = (row for row in report.checklist if row.name.startswith("held-out answers"))
    assert row.status == status and f"of {len(logged_scores)} logged answers" in row.figure
