"""Checks before a run starts. A new check is a file here with `check(context)`, and its entry in `CHECKS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from launcher.config import guard
from launcher.core import activity
from launcher.core.check_result import CheckResult, from_problems
from launcher.health.run_judge import rule_problems
from launcher.preflight.checks import (
    disk,
    environment,
    hardware,
    history,
    learning,
    memory,
    model,
    packages,
    reward,
    row_texts,
    rows,
    steps,
    text,
    trackers,
    unread,
)  # fmt: skip
from launcher.preflight.checks.context import Context, folder_of
from launcher.spec.engine import RunFacts
from launcher.spec.stored import to_node


def check_settings(context: Context) -> Iterator[CheckResult]:
    """Problems of data, model, reward and health rules, secrets among the settings, and the run's folder."""
    problems = [*context.data_problems, *context.model_problems, *context.reward_problems]
    problems += rule_problems(context.run)
    yield from from_problems([*problems, *guard.secrets_in_run(to_node(context.run), problems)])
    if context.folder_problems:
        yield from from_problems(context.folder_problems)
    else:
        yield CheckResult("OK", "folder", str(folder_of(context.run)))


def check_engine(context: Context) -> Iterable[CheckResult]:
    """The engine's own checks; none where the model or the folder has problems and the engine would open the
    model."""
    if (context.model_problems or context.folder_problems) and context.run.engine.opens_model:
        return ()
    activity.report("checking the engine and the machine")
    train, val = context.train, context.val
    facts = RunFacts(
        folder_of(context.run), context.here, context.steps.val_rows, train.sources, val.sources,
        unlabelled=sum(row.ground_truth is None for row in val.rows), example=next(iter(train.rows), None),
    )  # fmt: skip
    return context.run.engine.check(context.run, facts)


CHECKS: dict[Callable[[Context], Iterable[CheckResult]], tuple[str, ...] | None] = {
    check_settings: (), model.check: ("model",), text.check: ("algorithm", "data", "model"),
    rows.check: ("algorithm", "data", "model"), row_texts.check: ("algorithm", "data"),
    reward.check: ("algorithm", "data", "reward"),
    environment.check: ("algorithm", "data", "reward", "environment"), steps.check: ("data",), unread.check: None,
    check_engine: ("algorithm", "model", "data", "reward", "hardware", "cluster"),
    learning.check: ("algorithm", "model"), memory.check: None, hardware.check: ("hardware", "cluster"),
    disk.check: None, history.check: None, trackers.check: None, packages.check: (),
}  # fmt: skip
"""Checks in the order in which a plan shows their results; none assumes that another has passed. Each has the config
groups that must be valid to run it when other arguments are not; None: it runs only if all are."""


def run_checks(context: Context) -> Iterator[CheckResult]:
    for check in CHECKS:
        yield from check(context)
