"""What the engine itself finds of a run."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.core.check_result import CheckResult
from launcher.preflight.checks.context import Context, folder_of
from launcher.spec.engine import RunFacts


def check(context: Context) -> Iterable[CheckResult]:
    """Of a run whose model or folder has problems of its own, what an engine finds without them."""
    if (context.model_problems or context.folder_problems) and context.run.engine.opens_model:
        return ()
    rows, steps = context.train.rows, context.steps
    sources = frozenset(row.data_source for row in rows) if rows and context.train.complete else None
    facts = RunFacts(folder_of(context.run), context.here, steps.rows, steps.val_rows, sources)
    return context.run.engine.check(context.run, facts)
