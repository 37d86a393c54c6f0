"""`rlrun checkpoints [list | best | export] RUN`: what a run kept, which is best, and one of them for others."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.arguments import Root, complete_run
from launcher.cli.output import Cell, CommandAnswer, err, make_table, say, say_table, tell
from launcher.cli.progress import show_bytes
from launcher.core import checkpoints
from launcher.core.metrics import label
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.monitor.console import date
from launcher.runs import kept_checkpoints as keeping
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.runs.kept_checkpoints import Kept

OPTIONS = {
    "list": {"--metric", "--no-verify"},
    "best": {"--metric"},
    "export": {"--to", "--out", "--step", "--best", "--newest", "--metric", "--merge", "--base"},
}
"""Action -> the options that it takes."""
WHY = {"damaged": "it does not verify", "aside": "an earlier one was resumed"}


def of_run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[list|best|export] RUN", help="What to do, and with which run.", autocompletion=complete_run
        ),
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Which metric says what is best; by default the run's own.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="list: hash every file, or do not.")] = True,
    to: Annotated[str | None, typer.Option("--to", help="export: the layout; hf is Hugging Face's.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="export: the new folder.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="export: the checkpoint of this step.")] = None,
    best: Annotated[bool, typer.Option("--best", help="export: the best one.")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="export: the newest one; so by default.")] = False,
    fold: Annotated[bool, typer.Option("--merge", help="export: a LoRA adapter is added into its base.")] = False,
    base: Annotated[str | None, typer.Option("--base", help="export --merge: the folder of the base.")] = None,
    root: Root = Path("runs"),
) -> CommandAnswer:
    """What is exported is a plain model folder."""
    options = {"--metric": metric, "--no-verify": not verify, "--to": to, "--out": folder, "--step": step is not None,
             "--best": best, "--newest": newest, "--merge": fold, "--base": base}  # fmt: skip
    action, name = _read_words(words)
    _check_options(action, [option for option, value in options.items() if value])
    run = store.find(name, root)
    if action == "list":
        with err.status("hashing"):
            listed = keeping.kept(run, metric, verify=verify)
        aside = checkpoints.set_aside(run.checkpoints)
        nodes = [{"step": step, "path": path, "set_aside": True} for step, path in aside]
        return CommandAnswer([*(each.node for each in listed), *nodes], lambda: _say_checkpoints(run, listed, aside))
    if action == "best":
        chosen = keeping.best(run, metric)
        return CommandAnswer(chosen.node, lambda: typer.echo(os.fspath(chosen.path)))
    target = _check_export(to, folder, [step is not None, best, newest], metric if not best else None)
    checkpoint = keeping.of_step(run, step) if step is not None else None
    return _export(run, checkpoint or (keeping.best(run, metric) if best else keeping.newest(run)), target, fold, base)


def _check_options(action: str, given: list[str]) -> None:
    if misplaced := [option for option in given if option not in OPTIONS[action]]:
        raise Problems([Problem(option, f"is not an option of {action}", "leave it out") for option in misplaced])


def _check_export(to: str | None, folder: Path | None, which: list[bool], metric: str | None) -> Path:
    """The new folder, checked with the other options; `metric` is one given without --best. Raises `Problems`."""
    problems = []
    if to != "hf":
        problems.append(Problem("--to", "is missing" if to is None else f"got {to!r}", "use hf"))
    if folder is None:
        problems.append(Problem("--out", "is missing", "use a new folder"))
    if sum(which) > 1:
        problems.append(Problem("--step, --best, --newest", "more than one is given", "use one"))
    if metric:
        problems.append(Problem("--metric", "is only used with --best", "add --best, or leave it out"))
    if problems or folder is None:
        raise Problems(problems)
    return folder


def _read_words(words: list[str]) -> tuple[str, str]:
    """The action (default `list`) and the run, typed in either order. Raises `Problems`."""
    actions = [word for word in words if word in OPTIONS][:1]
    names = [word for place, word in enumerate(words) if place != (words.index(actions[0]) if actions else -1)]
    if not names:
        raise Problems(Problem("RUN", "is missing", f"use rlrun checkpoints {actions[0]} RUN"))
    if len(names) > 1:
        fix = "use list, best or export, and a run"
        raise Problems(Problem(shlex.join(words), "is not an action and a run", fix))
    return (actions or ["list"])[0], names[0]


def _say_checkpoints(run: Folder, kept: list[Kept], aside: list[tuple[int, Path]]) -> None:
    if not kept and not aside:
        return say(f"no checkpoints in {run.name}", "dim")
    ranking_metric = next((each.judged[0] for each in kept if each.judged), "")
    head = ["step", "written", "MB", "files", label(ranking_metric), ""]
    say_table(make_table(head, map(_checkpoint_row, kept), right=["step", "MB"]))
    for fault in (fault for each in kept for fault in each.faults or ()):
        say(f"damaged  {fault}", "red")
    if ranking_metric:
        say(f"best by {ranking_metric}", "dim")
    for step, path in aside:
        why, original = path.name.partition("-")[0], path.with_name(checkpoints.name_of(step))
        say(f"set aside  {path}, as {WHY[why]}")
        if why == "aside" and not original.exists():
            say(f"  back: {shlex.join(['mv', str(path), str(original)])}; --resume {run.path} --from {step}", "dim")
    return None


def _checkpoint_row(kept: Kept) -> list[Cell]:
    state = ("not looked at", "dim") if kept.faults is None else ("damaged", "red") if kept.faults else "verified"
    marks = ", ".join(word for word, true in (("best", kept.best), ("newest", kept.newest)) if true)
    score = compact(kept.judged[1]) if kept.judged else ""
    return [str(kept.step), date(kept.at), f"{kept.bytes / 1e6:,.1f}", state, score, (marks, "green")]


def _export(run: Folder, kept: Kept, folder: Path, fold: bool, base: str | None) -> CommandAnswer:
    from launcher.tools import export  # noqa: PLC0415  # late: it loads torch

    with show_bytes() as show:
        exported = export.export(run, kept, folder, show, fold=fold, base=base)
    what = "LoRA adapter" if exported.adapter else "model"
    size = f"{exported.bytes / 1e6:,.1f} MB, {exported.tensors} tensors, read back and checked"
    for note in exported.notes:
        tell(f"note: {note}")
    return CommandAnswer(exported, lambda: say(f"{exported.path}  {what} of step {exported.step}, {size}"))
