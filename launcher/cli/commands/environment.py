"""`rlrun env check`: an environment tried before a run trains in it."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.arguments import ConfigDir, Overrides
from launcher.cli.output import CommandAnswer, CommandGroup, say_checks
from launcher.config.arguments import parse
from launcher.config.compose import chosen_also
from launcher.config.resolve import resolve
from launcher.core.check_result import any_failed
from launcher.core.problems import Problem, Problems
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.environment import try_environment

app = CommandGroup()
DEFAULTS = {"algorithm": "grpo", "model": "tiny", "data": "reverse"}


@app.command("check")
def check(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    rows: Annotated[int, typer.Option(min=1, help="Training rows that are tried.")] = 4,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that are begun and ended, within 20 s.")] = 1000,
) -> CommandAnswer:
    """Try right, empty and nonsensical answers, faults and leaks: environment=python environment.path=shop.py ...

    Exit code 0 when a run can train in it, 1 when it should not, 2 for invalid input.
    """
    typed = overrides or []
    named = {word.partition("=")[0] for word in typed}
    for word in typed:
        named |= chosen_also({"environment": parse(word)}, config_dir) if word.startswith("environment=") else set()
    run = resolve([*(f"{group}={name}" for group, name in DEFAULTS.items() if group not in named), *typed], config_dir)
    if not run.environment.several_turns:
        raise Problems(Problem("environment", "has one turn, so there is nothing to try", "use environment=python"))
    context = Context(run, here=False)
    if problems := [*context.data_problems, *context.reward_problems] or run.environment.missing_requirements():
        raise Problems(problems)
    results = list(try_environment(run.environment, context.train.rows[:rows], sessions))
    return CommandAnswer(results, lambda: say_checks(results), exit_code=int(any_failed(results)))
