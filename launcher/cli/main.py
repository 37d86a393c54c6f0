"""rlrun's commands. Each parses its arguments, calls one function of a lower package, and prints the result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from launcher import __version__
from launcher.cli.lazy import CommandEntry, group
from launcher.cli.redacted_streams import redact_standard_streams

COMMANDS = (
    CommandEntry("train", "train:train", "Start a run and follow it to its end."),
    CommandEntry("plan", "plan:plan", "Show a run's settings, what it needs and what would fail, without starting it."),
    CommandEntry("doctor", "doctor:doctor", "Check this machine, or with --nodes a Ray cluster."),
    CommandEntry("advise", "advise:recommend", "Suggest a command for your data, model and hardware."),
    CommandEntry("rerun", "rerun:rerun", "Repeat a run in a new folder, after listing what has changed since."),
    CommandEntry("runs", "runs:list_runs", "List the runs, the latest first."),
    CommandEntry("show", "runs:show", "Show the state of a run, or of each point of a sweep."),
    CommandEntry("status", "runs:show", "Show the state of a run, or of each point of a sweep."),
    CommandEntry(
        "watch",
        "runs:watch",
        "Watch a run until it ends, from any machine that sees its folder or its cluster.",
    ),
    CommandEntry("logs", "runs:logs", "Print a run's console log; with --json its events."),
    CommandEntry("stop", "runs:stop", "Save and stop a run, or all running points of a sweep."),
    CommandEntry("checkpoints", "checkpoints:of_run", "List a run's checkpoints, print the best, or export one."),
    CommandEntry("config", "config:app", "Show settings, metrics, and how two runs differ."),
    CommandEntry("data", "data:app", "Prepare, check and show datasets."),
    CommandEntry("model", "models:app", "List, inspect, download and merge models."),
    CommandEntry("reward", "reward:app", "Test a reward before a run trains with it."),
    CommandEntry("cluster", "cluster:app", "Start, inspect and stop a Ray cluster of your machines."),
)  # fmt: skip


class Rlrun(typer.Typer):
    """Redacts secrets in all output. Uncaught errors are shown by Python, without values of variables."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        redact_standard_streams()
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
