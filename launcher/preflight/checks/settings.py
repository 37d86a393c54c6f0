"""What the parts of a run report as wrong before anything is loaded, and secrets that would be stored with it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config import guard
from launcher.core.check_result import CheckResult, from_problems
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.run_folder import folder_of
from launcher.spec.stored import to_node


def check(context: Context) -> Iterator[CheckResult]:
    """Problems of data, model and reward, secrets among the settings, and the run's folder."""
    found = [*context.data_problems, *context.model_problems, *context.reward_problems]
    yield from from_problems([*found, *guard.kept(to_node(context.run), found)])
    if context.folder_problems:
        yield from from_problems(context.folder_problems)
    else:
        yield CheckResult("OK", "folder", str(folder_of(context.run)))
