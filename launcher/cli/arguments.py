"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Hydra overrides: algorithm=grpo model=tiny data=reverse sampler.n=8"),
]
ConfigDir = Annotated[Path | None, "Folder with your own config groups: <group>/<choice>.yaml."]
Root = Annotated[Path, "Folder that holds the runs."]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Folder of a run, project/experiment, or experiment."),
]
LogOrRunName = Annotated[
    str,
    typer.Argument(
        metavar="LOG-OR-RUN",
        help="A log file, - for standard input, or a run: its folder, project/experiment, or experiment.",
    ),
]
