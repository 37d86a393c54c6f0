"""rlrun's commands. Each reads its words, calls one function of a lower floor, and prints the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from launcher import __version__
from launcher.cli.lazy import Entry, group
from launcher.cli.redacted_streams import blotting

COMMANDS = (
    Entry("train", "train:train", "Start a run and follow it to its end."),
    Entry("plan", "plan:plan", "Say what these words would run, and what would fail, before anything starts."),
    Entry("doctor", "doctor:doctor", "Check this machine, or with --nodes a Ray cluster."),
    Entry("advise", "advise:recommend", "Ask what you have, and answer with the command to run."),
    Entry("rerun", "rerun:rerun", "Make a run again beside it, after saying what is different now."),
    Entry("runs", "runs:list_runs", "List the runs, the latest first."),
    Entry("show", "runs:show", "Show where a run, or each point of a sweep, stands."),
    Entry("status", "runs:show", "Show where a run, or each point of a sweep, stands."),
    Entry(
        "watch",
        "runs:watch",
        "Watch a run until it ends, from any machine that sees its folder or its cluster.",
    ),
    Entry("logs", "runs:logs", "Print a run's console log; with --json its events."),
    Entry("stop", "runs:stop", "Ask a run, or all that run of a sweep, to save and end."),
    Entry("checkpoints", "checkpoints:of_run", "List a run's checkpoints, print the path of the best, or export one."),
    Entry("config", "config:app", "What can be set, and in what two runs differ."),
    Entry("data", "data:app", "Prepare, check and look at rows."),
    Entry("model", "models:app", "Models: the catalogue, what is here, and fetching what is not."),
    Entry("reward", "reward:app", "Try a reward before a run learns from it."),
    Entry("cluster", "cluster:app", "Bring machines together, see how they stand, and end it."),
)  # fmt: skip


class Rlrun(typer.Typer):
    """Says nothing secret, whatever happens: an error that nobody thought of is shown as Python shows it, which has no
    values of variables, and whatever is printed goes through `blotting`."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        blotting()
        return super().__call__(*args, **more)


app = Rlrun(cls=group(*COMMANDS), no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rlrun {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Start, watch and explain post-training runs of language models."""


if __name__ == "__main__":
    app()
