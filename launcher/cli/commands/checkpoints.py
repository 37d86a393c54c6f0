"""`rlrun checkpoints [list | export] RUN`: what a run kept, which is best, and one of them for others."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from launcher.cli.arguments import Root, RunName
from launcher.cli.output import Cell, CommandAnswer, CommandGroup, err, make_table, say, say_table, tell
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

WHY = {"damaged": "it does not verify", "aside": "an earlier one was resumed"}


class ListByDefault(TyperGroup):
    """Without the name of a command, it lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in (*self.commands, "--help")
        return super().parse_args(ctx, args if named else ["list", *args])


app = CommandGroup(ListByDefault)


@app.command("list")
def list_checkpoints(
    name: RunName,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Hash every file, or do not.")] = True,
    root: Root = Path("runs"),
) -> CommandAnswer:
    """List the checkpoints with their scores, each verified. `rlrun checkpoints RUN` does the same."""
    run = store.find(name, root)
    with err.status("hashing"):
        listed = keeping.kept(run, verify=verify)
    aside = checkpoints.set_aside(run.checkpoints)
    nodes = [{"step": step, "path": path, "set_aside": True} for step, path in aside]
    return CommandAnswer([*(each.node for each in listed), *nodes], lambda: _say_checkpoints(run, listed, aside))


@app.command("export")
def export_checkpoint(
    name: RunName,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The new folder.")],
    to: Annotated[Literal["hf"], typer.Option("--to", help="The layout: Hugging Face's.")] = "hf",
    step: Annotated[int | None, "The checkpoint of this step; default: the newest."] = None,
    best: Annotated[bool, "The best one."] = False,
    fold: Annotated[bool, typer.Option("--merge", help="Add a LoRA adapter into its base.")] = False,
    base: Annotated[str | None, "With --merge: the folder of the base."] = None,
    root: Root = Path("runs"),
) -> CommandAnswer:
    """Write a checkpoint as a plain model folder, which transformers and vLLM load."""
    if best and step is not None:
        raise Problems(Problem("--step, --best", "both are given", "use one"))
    run = store.find(name, root)
    kept = keeping.of_step(run, step) if step is not None else keeping.best(run) if best else keeping.newest(run)
    from launcher.tools import export  # noqa: PLC0415  # late: it loads torch

    with show_bytes() as show:
        exported = export.export(run, kept, folder, show, fold=fold, base=base)
    what = "LoRA adapter" if exported.adapter else "model"
    size = f"{exported.bytes / 1e6:,.1f} MB, {exported.tensors} tensors, read back and checked"
    for note in exported.notes:
        tell(f"note: {note}")
    return CommandAnswer(exported, lambda: say(f"{exported.path}  {what} of step {exported.step}, {size}"))


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
