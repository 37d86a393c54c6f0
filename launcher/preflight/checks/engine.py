"""What the engine itself finds of a run."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context, SplitRows, folder_of
from launcher.spec.engine import RunFacts


def check(context: Context) -> Iterable[CheckResult]:
    """Of a run whose model or folder has problems of its own, what an engine finds without them."""
    if (context.model_problems or context.folder_problems) and context.run.engine.opens_model:
        return ()
    train, val = context.train, context.val
    facts = RunFacts(
        folder_of(context.run), context.here, context.steps.val_rows, _sources(train), _sources(val),
        unlabelled=sum(row.ground_truth is None for row in val.rows), example=next(iter(train.rows), None),
        differs_by_turn=context.lengths.differs_by_turn,
    )  # fmt: skip
    return context.run.engine.check(context.run, facts)


def _sources(split: SplitRows) -> frozenset[str] | None:
    return frozenset(row.data_source for row in split.rows) if split.rows and split.complete else None
