"""`rlrun model merge`: merge several models, or a LoRA adapter into its base."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from launcher.cli.output import AsJson, err, printable, problems_named, say, say_json
from launcher.cli.progress import show_bytes
from launcher.core.problems import Problem, Problems, short_repr

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def merge(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Folders of models, checkpoints or runs.")],
    method: Annotated[str, typer.Option("--method", help="linear, slerp, task, ties, or lora (adapter into base).")],
    to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The new model's folder.")],
    base: Annotated[
        str | None,
        typer.Option("--base", help="task, ties: the model that they were fine-tuned from; lora: the adapter's base."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="linear: one for each model, such as 0.7,0.3.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="linear: divide the weights by their sum (default)."),
    ] = None,
    t: Annotated[
        float | None, typer.Option("--t", help="slerp: position between the first (0) and the second (1); default 0.5.")
    ] = None,
    density: Annotated[
        float | None, typer.Option("--density", help="ties: share of the changes that is kept; default 0.2.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option("--scale", help="task, ties: factor of the changes; default 1.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Number format: same, float32, bfloat16, float16.")] = "same",
    max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Largest size of a file.")] = "5GB",
    as_json: AsJson = False,
) -> None:
    """Merge models into a new one. Everything is checked before it is written, and read back afterwards."""
    from launcher.tools.merge import merge as merging  # noqa: PLC0415  # late: torch takes a second

    began = time.monotonic()
    with problems_named():
        given = {"weights": _numbers(weights), "normalize": normalize, "t": t, "density": density, "scale": scale}
        options = {name: value for name, value in given.items() if value is not None}
        asked = merging.MergeRequest(method, tuple(models), to, options, base, dtype, _bytes(max_shard_size))
        with show_bytes() as show:
            made = merging.merge(asked, show)
    if as_json:
        return say_json({**asdict(made), "path": str(made.path)})
    for note in made.notes:
        err.print(Text.assemble(("note  ", "bold yellow"), printable(note)), soft_wrap=True)
    size = f"{made.bytes / 1e6:,.0f} MB, {made.tensors} tensors, {len(made.files)} files"
    line = f"{printable(str(made.path))}  {size}, read back and checked, {time.monotonic() - began:.1f} s"
    say(line)
    return None


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """`0.7,0.3`"""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise Problems(Problem("--weights", f"got {short_repr(text)}", "use numbers such as 0.7,0.3")) from None


def _bytes(text: str) -> int:
    """`5GB`"""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", text.strip().lower())
    if not found or found[2] not in UNITS:
        raise Problems(Problem("--max-shard-size", f"got {short_repr(text)}", "use a size such as 5GB"))
    return int(float(found[1]) * UNITS[found[2]])
