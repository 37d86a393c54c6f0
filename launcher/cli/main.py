"""rlrun's commands. Each reads its words, calls one function of a lower floor, and prints the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from launcher import __version__
from launcher.cli import (
    advise,
    checkpoints,
    cluster,
    config,
    data,
    doctor,
    merge,
    models,
    plan,
    rerun,
    reward,
    runs,
    train,
)
from launcher.cli.blotting import blotting


class Rlrun(typer.Typer):
    """Says nothing secret, whatever happens: an error that nobody thought of is shown as Python shows it, which has no
    values of variables, and whatever is printed goes through `blotting`."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        blotting()
        return super().__call__(*args, **more)


app = Rlrun(no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


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


app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("advise")(advise.recommend)
app.command("rerun")(rerun.rerun)
app.command("runs")(runs.list_runs)
app.command("show")(runs.show)
app.command("status")(runs.show)
app.command("watch")(runs.watch)
app.command("logs")(runs.logs)
app.command("stop")(runs.stop)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
models.app.command("merge")(merge.merge)
app.add_typer(models.app, name="model")
app.command("checkpoints")(checkpoints.checkpoints)
app.add_typer(reward.app, name="reward")
app.add_typer(cluster.app, name="cluster")

if __name__ == "__main__":
    app()
