"""`rlrun checkpoints [list | best | export | repair] RUN`: what a run kept, which is best, and one of them for others.

RUN may also be a folder of checkpoints that verl wrote.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
from rich.text import Text

from launcher.cli.arguments import Root, complete_run
from launcher.cli.commands import verl_checkpoints
from launcher.cli.output import AsJson, Cell, err, make_table, out, problems_named, say, say_table, tell, write
from launcher.cli.progress import show_bytes
from launcher.core.metrics import label
from launcher.core.problems import Problem, Problems
from launcher.core.redaction import printable
from launcher.monitor.console import compact, date
from launcher.runs import kept_checkpoints as keeping
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.runs.kept_checkpoints import Kept

Action = Literal["list", "best", "export", "repair"]
BELONGS: dict[Action, set[str]] = {
    "list": {"--metric", "--no-verify"},
    "best": {"--metric"},
    "export": {"--to", "--out", "--step", "--best", "--newest", "--metric", "--merge", "--base", "--python"},
    "repair": set(),
}


def of_run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[list|best|export|repair] RUN", help="What to do, and with which run.", autocompletion=complete_run
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
    python: Annotated[
        str | None, typer.Option("--python", help="export of verl's own folder: the Python of verl's environment.")
    ] = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """What is exported is a plain model folder. RUN may be a folder of checkpoints that verl wrote; repair makes its
    tracker file name the newest complete one.
    """
    given = {"--metric": metric, "--no-verify": not verify, "--to": to, "--out": folder, "--step": step is not None,
             "--best": best, "--newest": newest, "--merge": fold, "--base": base, "--python": python}  # fmt: skip
    with problems_named():
        action, name = _action_and_run(words)
        _check_options(action, [option for option, value in given.items() if value])
        if verl_checkpoints.is_folder(name):
            return _of_verl(action, Path(name).expanduser(), as_json, (step, folder, python))
        if action == "repair" or python:
            got = "is of a folder of checkpoints that verl wrote, and this is none"
            raise Problems(Problem("--python" if python else "repair", got, "leave it out", "not-supported"))
        run = store.find(name, root)
        if action == "list":
            with err.status("hashing"):
                found = keeping.kept(run, metric, verify=verify)
            return write([_node(each) for each in found], as_json, lambda: _show(run, found))
        if action == "best":
            chosen = keeping.best(run, metric)
            return write(_node(chosen), as_json, lambda: typer.echo(os.fspath(chosen.path)))
        if problems := _export_problems(to, folder, [step is not None, best, newest], metric, best):
            raise Problems(problems)
        assert folder is not None
        kept = keeping.of_step(run, step) if step is not None else None
        return _export(
            run, kept or (keeping.best(run, metric) if best else keeping.newest(run)), folder, fold, base, as_json
        )


def _check_options(action: Action, given: list[str]) -> None:
    if alien := [option for option in given if option not in BELONGS[action]]:
        raise Problems([Problem(option, f"is not an option of {action}", "leave it out") for option in alien])


def _of_verl(action: Action, folder: Path, as_json: bool, to: tuple[int | None, Path | None, str | None]) -> None:
    """`to`: the step, the new folder and verl's Python of an export."""
    step, target, python = to
    if action == "best":
        raise Problems(Problem("best", f"{folder} is verl's, which keeps no scores there", "use list", "not-supported"))
    if action == "repair":
        return verl_checkpoints.repair(folder)
    if action == "list":
        return verl_checkpoints.list_all(folder, as_json)
    if target is None:
        raise Problems(Problem("--out", "is missing", "use a new folder"))
    return verl_checkpoints.export(folder, step, target, python)


def _action_and_run(words: list[str]) -> tuple[Action, str]:
    """Raises `Problems`. Either may come first."""
    first, *rest = words
    actions = get_args(Action)
    if not rest and first not in actions:
        return "list", first
    if not rest:
        raise Problems([Problem("RUN", "is missing", f"use rlrun checkpoints {first} RUN")])
    found = [(action, name) for action, name in ((first, rest[0]), (rest[0], first)) if action in actions]
    if not found or len(rest) > 1:
        raise Problems(
            [Problem(shlex.join(words), "is not an action and a run", "use list, best, export or repair, and a run")]
        )
    return cast(Action, found[0][0]), found[0][1]


def _export_problems(
    to: str | None, folder: Path | None, which: list[bool], metric: str | None, best: bool
) -> list[Problem]:
    found = []
    if to != "hf":
        found.append(Problem("--to", "is missing" if to is None else f"got {to!r}", "use hf"))
    if folder is None:
        found.append(Problem("--out", "is missing", "use a new folder"))
    if sum(which) > 1:
        found.append(Problem("--step, --best, --newest", "more than one is given", "use one"))
    if metric and not best:
        found.append(Problem("--metric", "is only used with --best", "add --best, or leave it out"))
    return found


def _show(run: Folder, found: list[Kept]) -> None:
    if not found:
        return say(f"no checkpoints in {run.name}", "dim")
    judged = next((each.judged[0] for each in found if each.judged), "")
    head = ["step", "written", "MB", "files", *([label(judged)] if judged else []), ""]
    say_table(make_table(head, [_row(each, bool(judged)) for each in found], right=["step", "MB"]))
    for fault in (fault for each in found for fault in each.faults or ()):
        out.print(Text.assemble(("damaged  ", "bold red"), printable(str(fault))), soft_wrap=True)
    if judged:
        say(f"best by {judged}", "dim")
    return None


def _row(of: Kept, judged: bool) -> list[Cell]:
    state = ("not looked at", "dim") if of.faults is None else ("damaged", "red") if of.faults else "verified"
    value = [compact(of.judged[1]) if of.judged else ""] if judged else []
    marks = ", ".join(word for word, true in (("best", of.best), ("newest", of.newest)) if true)
    return [str(of.step), date(of.at), f"{of.bytes / 1e6:,.1f}", state, *value, (marks, "green")]


def _export(run: Folder, of: Kept, folder: Path, fold: bool, base: str | None, as_json: bool) -> None:
    from launcher.tools import export  # noqa: PLC0415  # late: it loads torch

    with show_bytes() as show:
        made = export.export(run, of, folder, show, fold=fold, base=base)
    what = "LoRA adapter" if made.adapter else "model"
    size = f"{made.bytes / 1e6:,.1f} MB, {made.tensors} tensors, read back and checked"
    for note in made.notes:
        tell(f"note: {note}")
    write(made, as_json, lambda: say(f"{made.path}  {what} of step {made.step}, {size}"))


def _node(of: Kept) -> dict[str, Any]:
    name, score = of.judged or (None, None)
    faults = None if of.faults is None else list(map(str, of.faults))
    node = {**asdict(of), "path": of.path, "faults": faults, "verified": None if faults is None else not faults}
    del node["judged"]
    return {**node, "judged_by": name, "score": score}
