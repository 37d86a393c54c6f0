"""Arguments and options that several commands share, and their shell completion."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer


def _completion() -> ModuleType:
    """Loaded late: it needs Hydra, and only a shell that completes a word asks for it."""
    from launcher.config.reference import completion  # noqa: PLC0415

    return completion


def _complete_overrides(context: typer.Context, incomplete: str) -> list[str]:
    found: list[str] = _completion().completions(
        incomplete, context.params.get("overrides") or [], _path(context, "config_dir")
    )
    return found


def complete_target(context: typer.Context, incomplete: str) -> list[str]:
    found: list[str] = _completion().targets(incomplete, _path(context, "config_dir"))
    return found


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    found: list[str] = _completion().run_names(incomplete, _path(context, "root") or Path("runs"))
    return found


def _path(context: typer.Context, name: str) -> Path | None:
    given = context.params.get(name)
    return Path(given) if given else None


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Hydra overrides: algorithm=grpo model=tiny data=reverse sampler.n=8", autocompletion=_complete_overrides
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", help="Folder with your own config groups: <group>/<choice>.yaml.")
]
Root = Annotated[Path, typer.Option("--root", help="Folder that holds the runs.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Folder of a run, project/experiment, or experiment.", autocompletion=complete_run
    ),
]
LogOrRunName = Annotated[
    str,
    typer.Argument(
        metavar="LOG-OR-RUN",
        help="A log file, - for standard input, or a run: its folder, project/experiment, or experiment.",
        autocompletion=complete_run,
    ),
]
