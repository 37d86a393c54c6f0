"""The tables of a report: what is judged is what was measured, and figures of one table agree."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.events import Step
from launcher.reports.comparison import compare_runs
from launcher.reports.measures import ReportRow
from launcher.reports.report import make_report


def pairs(held_out: str) -> list[Step]:
    """A training on pairs whose accuracy rises, while what is held out stays."""
    steps = [Step(at=10.0 + n, step=n, metrics={"rewards/accuracies": 0.5 + n / 20}) for n in range(1, 10)]
    return [
        Step(at=10.0, step=0, metrics={held_out: 0.1}), *steps, Step(at=20.0, step=10, metrics={held_out: 0.1})
    ]  # fmt: skip


def rows_of(make_run: Any, events: list[Any]) -> dict[str, ReportRow]:
    report = make_report(make_run(events))
    return {row.name: row for row in (*report.checklist, *report.efficiency)}


@pytest.mark.parametrize(("held_out", "status"), [
    ("val-core/gsm8k/reward/mean@1", "not measured"),  # of answers: another measure than pairs
    ("val/rewards/accuracies", "fail"),  # the same of held-out pairs
])  # fmt: skip
def test_an_accuracy_on_pairs_is_not_compared_with_a_score_of_answers(
    make_run: Any, logged: Any, held_out: str, status: str
) -> None:
    rows = rows_of(make_run, [*logged.begin(), *pairs(held_out)])
    assert rows["held-out score moves with the training score"].status == status
    assert rows["no overfitting: gap < 20%"].status == status


def test_training_scores_of_different_kinds_are_named(make_run: Any, logged: Any) -> None:
    scored = [*logged.begin(), Step(at=9.0, step=1, metrics={"critic/score/mean": 0.25})]
    runs = [make_run(scored, "one"), make_run(scored, "two"), make_run([*logged.begin(), *pairs(logged.mean)], "three")]
    for other, expected in ((runs[1], ("0.25", "0.25")), (runs[2], ("score 0.25", "accuracy 0.75"))):
        found = compare_runs([str(runs[0].path), str(other.path)], other.path.parent.parent)
        assert ("training score, last steps", *expected) in found.results
