"""`rlrun train | rerun`: start, continue or repeat a run, and watch it to its end."""

from __future__ import annotations

import shlex
import signal
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import ConfigDir, Overrides, Root, RunName, complete_run
from launcher.cli.commands import sweep
from launcher.cli.commands.plan import Multirun, Recipe, answer_plan
from launcher.cli.commands.sweep import Parallel
from launcher.cli.live_view import watching
from launcher.cli.output import AsJson, CommandAnswer, say, say_problems, tell, write_json
from launcher.config.recipe import run_request
from launcher.config.request import RunRequest
from launcher.core.check_result import CheckResult
from launcher.core.metrics import LEARNT_FROM
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState
from launcher.launch import job, start
from launcher.launch.follow import Outcome
from launcher.launch.queue import watch_lifeline
from launcher.launch.rerun import prepare_rerun, start_rerun
from launcher.monitor.console import next_command, unsaid
from launcher.preflight.plan import Page, page, plan, ready_from
from launcher.runs import store
from launcher.runs.stop_requests import handle_signals


def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with a run from its newest good checkpoint.",
            autocompletion=complete_run,
        ),
    ] = None,
    root: Annotated[str, typer.Option("--root", help="Folder in which --resume looks for runs.")] = "runs",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: show what would run here, and what would fail.")
    ] = False,
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
    if dry_run and detached:
        raise Problems(Problem("--dry-run", "starts nothing that could be detached", "leave out -d"))
    if resume is None and from_step is not None:
        raise Problems(Problem("--from", "is a checkpoint of a run", "use --resume RUN"))
    request = TrainRequest(overrides or [], config_dir, recipe, resume, Path(root), from_step)
    if dry_run:
        return sweep.plan(request.by, here=True) if multirun else answer_plan(request.page())
    swept = None
    if resume is not None:
        swept = sweep.find_sweep(resume, request.by, request.root, multirun, parallel)
    elif multirun:
        swept = sweep.begin(request.by, parallel)
    if swept is None and parallel is not None:
        raise Problems(Problem("--parallel", "is for a sweep", "use -m to start one"))
    if detached:
        _say_detached(job.resume_sweep(swept.path, parallel) if swept else request.submit(), bool(swept))
        return None
    if swept:
        raise typer.Exit(sweep.run(swept))
    outcome = request.run()
    say_end(outcome)
    raise typer.Exit(outcome.exit_code)


@dataclass(frozen=True)
class TrainRequest:
    """A request for one run: a new one, or the one that `resume` names."""

    typed: list[str]
    config_dir: Path | None
    recipe: str | None
    resume: str | None
    root: Path
    from_step: int | None

    @cached_property
    def by(self) -> RunRequest:
        """The arguments, with those of the recipe or file, and the folder of config groups."""
        return run_request(self.typed, self.config_dir, self.recipe if self.resume is None else None)

    def page(self) -> Page:
        """The plan of the new or resumed run on this machine. Raises `Problems`."""
        if self.resume is None:
            return plan(self.typed, self.config_dir, recipe=self.recipe, here=True)
        resumption = start.to_resume(store.find(self.resume, self.root), self.typed, self.from_step)
        checked = page(resumption.run, here=True)
        folder = ("folder", "trainer.experiment_name")  # its results are no conflict, as it is resumed
        results = [CheckResult("OK", "--resume", resumption.line)]
        results += [CheckResult("WARN", "--resume", note) for note in resumption.notes]
        return replace(checked, results=[*results, *(each for each in checked.results if each.subject not in folder)])

    def submit(self) -> job.Submitted:
        """Start or resume the run in a process of its own. Raises `Problems`."""
        if self.resume is None:
            return job.submit(job.StartRequest(tuple(self.by.texts), self.by.config_dir))
        return job.resume(store.find(self.resume, self.root), self.typed, self.from_step)

    def run(self) -> Outcome:
        """Start or resume the run and follow it to its end. Raises `Problems`."""
        if self.resume is not None:
            folder = store.find(self.resume, self.root)
            with watching() as view:
                return start.resume(folder, self.typed, [view], self.from_step, handle_signals)
        checked = ready_from(self.typed, self.config_dir, self.recipe)
        for note in checked.notes:
            tell(note)
        for warning in checked.warnings:
            tell(f"! {warning.line}", "yellow")
        with watching() as view:
            return start.start(checked, ["train", *self.by.texts], [view], handle_signals)[1]


def _say_detached(submitted: job.Submitted, is_sweep: bool) -> None:
    if (code := submitted.wait_until_begun(partial(tell, style=""))) is not None:
        raise typer.Exit(code)
    say(f"{submitted.folder.name} runs in the background")
    where = shlex.quote(str(submitted.folder.path))
    for command in ("status", "stop") if is_sweep else ("watch", "status", "logs -f", "stop"):
        say(f"  rlrun {command} {where}")
    if submitted.cluster:
        absolute = shlex.quote(str(submitted.folder.path.absolute()))
        say(f"where the folder is not: rlrun watch {absolute} --cluster {submitted.cluster}", "dim")


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
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if the data, the model or the reward has changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the differences.")] = False,
    as_json: AsJson = False,
) -> None:
    """It starts from its spec.yaml and lock.json.

    Ends as train does; with --dry-run with 0, or 2 where it would be refused.
    """
    arguments = overrides or []
    folder = store.find(name, root)
    prepared = prepare_rerun(folder, arguments)
    refused = [] if anyway else prepared.refused
    if not as_json:
        for line in prepared.differences or ["nothing differs"]:
            say(line)
    outcome = None
    if not (dry_run or refused):
        with nullcontext() if as_json else watching() as view:
            outcome = start_rerun(prepared, ["rerun", folder.name, *arguments], [view] if view else [], handle_signals)
    if as_json:
        trainer = prepared.run.trainer
        write_json({
            "run": folder.name, "new": f"{trainer.project_name}/{trainer.experiment_name}",
            "differences": prepared.differences, "refused": list(map(str, refused)),
            "status": outcome.state.status if outcome else None,
        })  # fmt: skip
    if refused:
        raise Problems(refused)
    if outcome:
        say_end(outcome)
        raise typer.Exit(outcome.exit_code)
