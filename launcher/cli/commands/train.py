"""`rlrun train | rerun`: start, continue or repeat a run, and watch it to its end."""

from __future__ import annotations

import shlex
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import ConfigDir, Overrides, Root, RunName
from launcher.cli.commands import sweep
from launcher.cli.commands.plan import Multirun, Recipe, answer_plan
from launcher.cli.commands.sweep import Parallel
from launcher.cli.live_view import watching
from launcher.cli.output import CommandAnswer, say, say_problems, tell
from launcher.config.recipe import run_request
from launcher.config.request import RunRequest
from launcher.core.metrics import LEARNT_FROM
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState
from launcher.launch import job, start
from launcher.launch.follow import Outcome
from launcher.launch.queue import watch_lifeline
from launcher.launch.rerun import prepare_rerun
from launcher.monitor.console import next_command, unsaid
from launcher.preflight.plan import plan, ready, ready_from
from launcher.runs import store
from launcher.runs.stop_requests import handle_signals


def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Go on with a run from its newest good checkpoint.",
        ),
    ] = None,
    root: Annotated[str, "Folder in which --resume looks for runs."] = "runs",
    dry_run: Annotated[bool, "Start nothing: show what would run here, and what would fail."] = False,
    detached: Annotated[
        bool, typer.Option("-d", "--detach", help="Return once the run has started; it continues in the background.")
    ] = False,
    multirun: Multirun = False,
    parallel: Parallel = None,
    recipe: Recipe = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from", metavar="STEP", help="With --resume: go on from this checkpoint, not the newest."),
    ] = None,
) -> CommandAnswer | None:
    """Arguments may be in a YAML file: rlrun train run.yaml optim.lr=1e-5.

    With --resume, arguments may change where, how fast and how long (trainer.total_training_steps) it runs. With -m,
    arguments may have several values (seed=0,1,2), and each combination is a run; --resume continues those that are not
    done.

    Exit codes: 0 done, 1 failed, 2 invalid configuration, 143 or 130 stopped by SIGTERM or SIGINT. With -d it returns 0
    as soon as the run has started; rlrun watch, status, logs and stop find it from then on.
    """
    watch_lifeline()
    if dry_run and resume is not None:
        raise Problems(Problem("--dry-run", "is for a new run", "leave it out: --resume checks before it starts"))
    if resume is None and from_step is not None:
        raise Problems(Problem("--from", "is a checkpoint of a run", "use --resume RUN"))
    typed = overrides or []
    if dry_run and not multirun:
        return answer_plan(plan(typed, config_dir, recipe=recipe, here=True))
    by = run_request(typed, config_dir, recipe if resume is None else None)
    if dry_run:
        return sweep.plan(by, here=True)
    swept = sweep.choose(by, resume, Path(root), multirun, parallel)
    if detached:
        if swept:
            submitted = job.resume_sweep(swept.path, parallel)
        elif resume is not None:
            submitted = job.resume(store.find(resume, Path(root)), typed, from_step)
        else:
            submitted = job.submit(by.texts, by.config_dir)
        _say_detached(submitted, bool(swept))
        return None
    if swept:
        raise typer.Exit(sweep.run(swept))
    if resume is not None:
        with watching() as view:
            outcome = start.resume(store.find(resume, Path(root)), typed, [view], from_step, handle_signals)
    else:
        outcome = _start(by, typed, config_dir, recipe)
    say_end(outcome)
    raise typer.Exit(outcome.exit_code)


def _start(by: RunRequest, typed: list[str], config_dir: Path | None, recipe: str | None) -> Outcome:
    checked = ready_from(typed, config_dir, recipe)
    for note in checked.taken:
        tell(note)
    for warning in checked.warnings:
        tell(f"! {warning.line}", "yellow")
    with watching() as view:
        return start.start(checked, ["train", *by.texts], [view], handle_signals)[1]


def _say_detached(submitted: job.Submitted, is_sweep: bool) -> None:
    if (code := submitted.wait_until_begun(partial(tell, style=""))) is not None:
        raise typer.Exit(code)
    say(f"{submitted.folder.name} runs in the background")
    where = shlex.quote(str(submitted.folder.path))
    for command in ("status", "stop") if is_sweep else ("watch", "status", "logs -f", "stop"):
        say(f"  rlrun {command} {where}")


def say_end(outcome: Outcome) -> None:
    if outcome.crash and outcome.crash.user_error:
        say_problems(outcome.crash.lines)
    elif outcome.state.status != "stopped" and (why := unsaid(outcome.state)):
        say_problems([why])
    if outcome.folder is None or outcome.exit_code == 128 + signal.SIGHUP:  # after SIGHUP there is no terminal
        return
    run, state = str(outcome.folder), outcome.state
    if state.status == "finished" and not state.doubtful:
        tell(f"next: {_suggest_after_success(outcome.folder, state)}")
    elif state.status == "stopped" and not state.following:
        tell(f"next: rlrun train --resume {shlex.quote(run)}")
    elif state.following:
        tell(f"next: {next_command(state.following, run)}")


def _suggest_after_success(folder: Path, state: RunState) -> str:
    """The command that shows a finished run's answers, and one that compares it with a similar run or reports it."""
    run, sampled = str(folder), LEARNT_FROM[1] in state.learnt_from
    first = next_command(["samples" if sampled and state.answers else "chat"], run)
    similar = (
        other.folder.path
        for other in store.every(folder.parent.parent)
        if other.folder.path.parent == folder.parent and other.folder.path != folder
        if other.state.status == "finished" and other.state.algorithm == state.algorithm
        if state.last and other.state.last and other.state.last.name == state.last.name
    )
    similar_run = next(similar, None)
    second = shlex.join(["rlrun", "compare", str(similar_run), run]) if similar_run else next_command(["report"], run)
    return f"{first}; {second}"


def rerun(
    name: RunName,
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change: optim.lr=1e-6 seed=1")] = None,
    root: Root = Path("runs"),
    anyway: Annotated[bool, "Run even if the data, the model or the reward has changed."] = False,
    dry_run: Annotated[bool, "Only list the differences."] = False,
) -> None:
    """It starts from its spec.yaml and lock.json.

    Ends as train does; with --dry-run with 0, or 2 where it would be refused.
    """
    arguments = overrides or []
    folder = store.find(name, root)
    prepared = prepare_rerun(folder, arguments)
    for line in prepared.differences or ["nothing differs"]:
        say(line)
    if prepared.refused and not anyway:
        raise Problems(prepared.refused)
    if not dry_run:
        with watching() as view:
            typed = ["rerun", folder.name, *arguments]
            outcome = start.start(ready(prepared.run), typed, [view], handle_signals)[1]
        say_end(outcome)
        raise typer.Exit(outcome.exit_code)
