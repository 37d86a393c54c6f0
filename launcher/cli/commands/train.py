"""`rlrun train`: start a run, or take one up again, and watch it to its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.arguments import ConfigDir, Words, complete_run
from launcher.cli.commands import sweep
from launcher.cli.commands.plan import Multirun
from launcher.cli.commands.plan import show as show_page
from launcher.cli.commands.sweep import Parallel
from launcher.cli.live_view import watching
from launcher.cli.output import err, out, printable, problems_named, say_problems
from launcher.config.resolve import resolve
from launcher.core.problems import Problem, Problems
from launcher.launch import detach, start
from launcher.launch.follow import Outcome
from launcher.launch.sweeps import drive
from launcher.launch.sweeps.points import Sweep
from launcher.preflight.plan import plan, ready
from launcher.runs import store


def train(
    words: Words = None,
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
) -> None:
    """Start a run and follow it to its end. With --resume, arguments may change where and how fast it runs.

    With -m, arguments may have several values (seed=0,1,2), and each combination is a run; --resume continues those
    that are not done.

    Exit codes: 0 done, 1 failed, 2 invalid configuration, 143 or 130 stopped by SIGTERM or SIGINT. With -d
    it returns 0 as soon as the run has started; rlrun watch, status, logs and stop find it from then on.
    """
    drive.watch_lifeline()
    with problems_named():
        if dry_run and resume is not None:
            raise Problems(Problem("--dry-run", "checks a new run, and --resume continues one", "use one of the two"))
        if dry_run and detached:
            raise Problems(Problem("--dry-run", "starts nothing that could be detached", "leave out -d"))
    if dry_run and multirun:
        return sweep.plan(words or [], config_dir, as_json=False, here=True)
    with problems_named():
        if dry_run:
            return show_page(plan(words or [], config_dir, here=True))
        swept = sweep.asked(words or [], config_dir, resume, Path(root), multirun, parallel)
        if detached:
            return _detach(swept, words or [], config_dir, resume, root, parallel)
        if swept:
            raise typer.Exit(sweep.run(swept))
        outcome = _start(words or [], config_dir) if resume is None else _resume(resume, words or [], root)
    say_end(outcome)
    raise typer.Exit(outcome.exit_code)


def _start(words: list[str], config_dir: ConfigDir) -> Outcome:
    judged = ready(resolve(words, config_dir))
    for warning in judged.warnings:
        err.print(Text.assemble(("! ", "bold yellow"), printable(warning.line)), soft_wrap=True, highlight=False)
    with watching() as view:
        return start.start(judged, ["train", *words], [view])[1]


def _resume(name: str, words: list[str], root: str) -> Outcome:
    folder = store.find(name, Path(root))
    with watching() as view:
        return start.resume(folder, words, [view])


def _detach(
    swept: Sweep | None, words: list[str], config_dir: Path | None, resume: str | None, root: str, parallel: str | None
) -> None:
    def say(line: str) -> None:
        err.print(Text(printable(line)), soft_wrap=True, highlight=False)

    if swept:
        begun = detach.sweep(swept.path, parallel, say)
    elif resume is not None:
        begun = detach.resume(store.find(resume, Path(root)), words, say)
    else:
        begun = detach.begin(words, config_dir, say)
    if begun.exit_code is not None:
        raise typer.Exit(begun.exit_code)
    out.print(Text(printable(f"{begun.folder.name} runs in the background")), soft_wrap=True)
    where = printable(shlex.quote(str(begun.folder.path)))
    for command in ("status", "stop") if swept else ("watch", "status", "logs -f", "stop"):
        out.print(Text(f"  rlrun {command} {where}"), soft_wrap=True, highlight=False)
    if begun.cluster:
        whole = printable(shlex.quote(str(begun.folder.path.absolute())))
        say_far = f"where the folder is not: rlrun watch {whole} --cluster {printable(begun.cluster)}"
        out.print(Text(say_far, "dim"), soft_wrap=True, highlight=False)


def say_end(outcome: Outcome) -> None:
    if outcome.crash and outcome.crash.user_error:
        say_problems(outcome.crash.lines)
    elif outcome.state.why and outcome.state.status != "stopped":
        err.print(Text.assemble(("✗ ", "bold red"), printable(outcome.state.why)), soft_wrap=True)
