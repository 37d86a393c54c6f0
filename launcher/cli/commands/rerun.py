"""`rlrun rerun`: make a run again, and say what is different now."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from launcher.cli.commands.runs import Name, Root
from launcher.cli.commands.train import say_end
from launcher.cli.live_view import watching
from launcher.cli.output import AsJson, out, printable, problems_named, say_json
from launcher.core.problems import Problems
from launcher.launch import rerun as again
from launcher.launch.follow import Outcome
from launcher.runs import store


def rerun(
    name: Name,
    words: Annotated[list[str] | None, typer.Argument(help="Settings to change: optim.lr=1e-6 seed=1")] = None,
    root: Root = Path("runs"),
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run even if the data, the model or the reward has changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the differences.")] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a run in a new folder, after listing what has changed since. It starts from its spec.yaml and lock.json.

    Ends as train does; with --dry-run with 0, or 2 where it would be refused.
    """
    given = words or []
    with problems_named():
        folder = store.find(name, root)
        made = again.again(folder, given)
        refused = [] if anyway else made.refused
        if not as_json:
            for line in [each.line for each in made.differences] or ["nothing differs"]:
                out.print(Text(printable(line)), soft_wrap=True)
        outcome = None if dry_run or refused else _begin(made, ["rerun", folder.name, *given], silent=as_json)
        if as_json:
            say_json(
                {
                    "run": folder.name,
                    **_node(made),
                    "refused": [str(problem) for problem in refused],
                    "status": _status(outcome),
                }
            )
        if refused:
            raise Problems(refused)
    if outcome:
        say_end(outcome)
        raise typer.Exit(outcome.exit_code)


def _begin(made: again.Again, typed: list[str], silent: bool) -> Outcome:
    if silent:
        return again.begin(made, typed, [])
    with watching() as view:
        return again.begin(made, typed, [view])


def _node(made: again.Again) -> dict[str, Any]:
    name = f"{made.run.trainer.project_name}/{made.run.trainer.experiment_name}"
    return {"new": name, "differences": [asdict(each) for each in made.differences]}


def _status(outcome: Outcome | None) -> str | None:
    return outcome.state.status if outcome else None
