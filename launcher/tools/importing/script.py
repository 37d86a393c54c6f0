"""A launch script -> recipes of ours, one for each launch of verl in it."""

from __future__ import annotations

import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path

from launcher.config.descriptions import fields_of
from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems
from launcher.sandbox.reading import ARGUMENTS, Reading, read_script
from launcher.spec.run import RunSpec
from launcher.tools.importing.launch import ImportedLaunch, import_launch
from launcher.tools.importing.launches import Launch, launch_of
from launcher.tools.importing.written_configs import with_written_config

WIDTH = 116
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


@dataclass(frozen=True)
class ImportedScript:
    path: Path
    launches: list[ImportedLaunch]
    problems: list[Problem]
    """Parts that cannot be read."""
    notes: list[str]
    """What is known only when the script runs, and what was assumed instead."""


def import_script(
    path: Path,
    arguments: Sequence[str] = (),
    only: int | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    confined: bool = True,
) -> ImportedScript:
    """What `bash path arguments...` would start here, as runs of ours; `only` the launch with this number.

    Of the shell's variables only those in `environment` are there, so that the same script gives the same recipes
    everywhere. Raises `Problems` where nothing is found."""
    reading = read_script(path, arguments, environment, confined=confined)
    started = [launch_of(one, reading.written) for one in reading.started]
    launches = [launch for launch in started if launch is not None and launch.trains]
    problems = [*reading.refused]
    if not launches:
        if not problems:
            fix = ARGUMENTS if not arguments else ""
            problems = [Problem(str(path), "starts no training of verl", fix, "not-found")]
        raise Problems([*problems, *(Problem(each.place, str(each), code="not-found") for each in reading.open)])
    if only is not None and not 1 <= only <= len(launches):
        raise Problems(Problem("--run", f"there is no launch {only}", f"use 1 to {len(launches)}", "not-found"))
    chosen = launches if only is None else launches[only - 1 : only]
    notes = [f"{each.place}: {each}" for each in reading.open]
    return ImportedScript(path, [_import_one(launch, reading) for launch in chosen], problems, notes)


def _import_one(launch: Launch, reading: Reading) -> ImportedLaunch:
    """A launch as a run of ours, also where it uses a config that the script wrote."""
    with tempfile.TemporaryDirectory() as folder:
        ready = with_written_config(launch, reading.written, reading.placeholders, Path(folder))
        imported = import_launch(ready.launch, reading.placeholders)
    imported.launch = launch
    imported.notes[:0] = ready.notes
    return imported


def recipe_paths(path: Path, count: int) -> list[Path]:
    """name.sh, name-2.sh, ..."""
    return [path, *(path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, count + 1))][:count]


def recipe(made: ImportedLaunch, name: str, of: date) -> str:
    """The text of a recipe that makes the imported run."""
    run = made.run
    title = f"{type(run.algorithm).__name__} of {run.model.label}" if run else "A run of verl"
    hardware = _hardware(made)
    head = [
        f"{title}, imported from {made.name} ({made.launch.program}).",
        f"{name} trainer.experiment_name=first",
        f"Date {of.isoformat()} · hardware: {hardware} · result: not measured yet.",
        *made.notes,
        *(str(problem) for problem in made.problems),
    ]
    comments = [f"# {line}" for text in head for line in textwrap.wrap(text, WIDTH) or [""]]
    command = "rlrun train " + " \\\n  ".join([*_lines(made.arguments), '"$@"'])
    return "\n".join(["#!/usr/bin/env bash", *comments, "set -euo pipefail", "", command, ""])


def _hardware(made: ImportedLaunch) -> str:
    if made.run is None:
        return "unknown"
    hardware = made.run.hardware
    machines = f"{hardware.nnodes} machines with " if hardware.nnodes > 1 else ""
    return f"{machines}{hardware.n_gpus_per_node} GPUs" if hardware.n_gpus_per_node else "CPU"


def _lines(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments on lines of at most WIDTH: choices first, then the settings of each group, the engine's last."""
    names = [*(name for name in fields_of(RunSpec) if name != "engine"), "engine"]

    def rank(text: str) -> tuple[bool, int]:
        group, dot, _ = key_of(text).partition(".")
        return bool(dot), names.index(group) if group in names else len(names)

    for _, texts in groupby(sorted(arguments, key=rank), lambda text: rank(text) if "." in key_of(text) else ()):
        line = ""
        for text in texts:
            word = text if _SAFE.fullmatch(text) else shlex.quote(text)
            if line and len(line) + len(word) > WIDTH:
                yield line
                line = ""
            line = f"{line} {word}".lstrip()
        yield line
