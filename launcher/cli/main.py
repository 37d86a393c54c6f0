"""rlrun's commands. Each parses its arguments, calls one function of a lower package, and prints the result."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from launcher import __version__
from launcher.cli import streams
from launcher.core.problems import error_message


@dataclass(frozen=True)
class CommandEntry:
    """One command of the group."""

    name: str
    at: str
    """`module:function` in `launcher.cli.commands`, or `module:app` for a group."""
    help: str
    """The first sentence of its help, shown without importing it; the command's docstring has the rest."""
    panel: str
    """The heading of the help under which it is listed."""
    other_options: bool = False
    """Whether unknown options are taken as arguments: `--learning_rate 5e-6` is answered as a setting."""
    examples: tuple[str, ...] = ()


TRAIN, LOOK, PREPARE = "Train", "Look at runs", "Settings, data, models, rewards"
COMMANDS = (
    CommandEntry(
        "train", "train:train", "Start a run and follow it to its end.", TRAIN, True,
        ("rlrun train algorithm=sft model=tiny data=reverse", "rlrun train --resume RUN"),
    ),
    CommandEntry(
        "plan", "plan:plan", "Show a run's settings, what it needs and what would fail, without starting it.", TRAIN,
        True, ("rlrun plan algorithm=grpo model=tiny data=reverse sampler.n=4", "rlrun plan --recipe grpo-gsm8k"),
    ),
    CommandEntry(
        "import", "imports:import_", "Make recipes of a launch script of verl, and plan them.", TRAIN,
        examples=("rlrun import FILE.sh",),
    ),
    CommandEntry("rerun", "train:rerun", "Repeat a run in a new folder, after listing what has changed since.", TRAIN),
    CommandEntry("stop", "runs:stop", "Save and stop a run, or all running points of a sweep.", TRAIN),
    CommandEntry("runs", "runs:list_runs", "List the runs, the latest first.", LOOK),
    CommandEntry(
        "show", "runs:show", "Show what a run came to and how its attempts ended, or each point of a sweep.", LOOK
    ),
    CommandEntry("status", "runs:status", "Print where a run stands on one line, or each point of a sweep.", LOOK),
    CommandEntry(
        "watch", "runs:watch", "Watch a run until it ends, from any machine that sees its folder.", LOOK
    ),
    CommandEntry(
        "metrics", "metrics:metrics",
        "Show the metrics of a run, or of a log that verl, TRL or another program wrote: curves, steps, or all values.",
        LOOK,
    ),
    CommandEntry(
        "samples", "samples:samples",
        "Show sampled answers of a run, or of a log of verl: the latest ones, those of a step, or what changed.", LOOK,
    ),
    CommandEntry("logs", "runs:logs", "Print a run's console log; with --json its events.", LOOK),
    CommandEntry(
        "checkpoints", "checkpoints:app", "List a run's checkpoints, or export one.", LOOK
    ),
    CommandEntry("report", "reports:report", "Write what a run came to as a page, report.html.", LOOK),
    CommandEntry(
        "compare", "reports:compare",
        "Compare runs: settings, results, and whether their held-out scores differ.", LOOK,
    ),
    CommandEntry(
        "diagnose", "diagnose:diagnose", "Find what is wrong with a run, or with a log of another program.", LOOK,
        examples=("rlrun diagnose RUN", "rlrun diagnose --profile verl_ppo_gsm8k RUN"),
    ),
    CommandEntry(
        "track", "track:track",
        "Send a run's metrics to TensorBoard, W&B, trackio, MLflow, SwanLab or a file.", LOOK,
    ),
    CommandEntry("serve", "serve:serve", "Serve a job API and a page of all runs.", LOOK),
    CommandEntry("generate", "generate:generate", "Answer prompts with a checkpoint or a model.", LOOK),
    CommandEntry("chat", "generate:chat", "Talk to a checkpoint or a model.", LOOK),
    CommandEntry("config", "config:app", "Show settings, and how two runs differ.", PREPARE),
    CommandEntry("data", "data:app", "Prepare, check and show datasets.", PREPARE),
    CommandEntry("model", "models:app", "List, download and merge models.", PREPARE),
    CommandEntry("env", "environment:app", "Try an environment before a run trains in it.", PREPARE),
    CommandEntry("reward", "reward:app", "Test a reward before a run trains with it.", PREPARE),
)  # fmt: skip
"""All commands, in the order and under the headings of the help."""


class LazyGroup(TyperGroup):
    """The COMMANDS in their order; a command's module is imported only when the command is called."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = {
            entry.name: TyperCommand(entry.name, help=entry.help, rich_help_panel=entry.panel) for entry in COMMANDS
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = re.compile(rf"\b{re.escape(args[0])}\b", re.IGNORECASE)
        about = [entry.name for entry in COMMANDS if word.search(" ".join((entry.help, *entry.examples)))]
        if about and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'; see " + " or ".join(f"rlrun {name} --help" for name in about[:3]))
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(next(entry for entry in COMMANDS if entry.name == name)) if name else command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in plain text, under their headings."""
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS):
            with formatter.section(panel):
                formatter.write_dl([(entry.name, entry.help) for entry in COMMANDS if entry.panel == panel])


def load(entry: CommandEntry) -> Any:
    """The command itself, from `module:attribute` below `launcher.cli.commands`."""
    module, _, attribute = entry.at.partition(":")
    gc.disable()  # collection takes a tenth of the import time and finds no garbage
    try:
        target: typer.Typer | Callable[..., Any] = getattr(import_module(f"launcher.cli.commands.{module}"), attribute)
        as_command = import_module("launcher.cli.output").as_command
    finally:
        gc.enable()
    if isinstance(target, typer.Typer):
        target.info.help = entry.help
        return get_group(target)
    command_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    examples = "\n\n".join(("Examples:", *entry.examples)) if entry.examples else None
    settings = {"ignore_unknown_options": entry.other_options}
    text = "\n\n".join(filter(None, (entry.help, inspect.getdoc(target))))
    command_app.command(entry.name, help=text, epilog=examples, context_settings=settings)(as_command(target))
    return get_command(command_app)


class Rlrun(typer.Typer):
    """Redacts secrets in all output. Uncaught errors are shown by Python, without values of variables."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        streams.protect()
        try:
            try:
                return super().__call__(*args, **more)
            finally:
                sys.stdout.flush()  # here, as at its exit Python would print a traceback
        except BrokenPipeError:  # the reader has closed its end
            sys.exit(1)
        except OSError as error:
            if error.filename != streams.OUTPUT:
                raise
            print(f"✗ {streams.OUTPUT}: {error_message(error)}; use a place that can be written", file=sys.stderr)
            sys.exit(2)


app = Rlrun(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


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
