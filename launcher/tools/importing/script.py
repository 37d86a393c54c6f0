"""A launch script -> recipes of ours, one for each launch of verl in it."""

from __future__ import annotations

import posixpath
import shlex
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.core.overrides import key_of
from launcher.core.problems import Problem, Problems
from launcher.engines.verl.config.compose import split_flags
from launcher.sandbox.reading import ARGUMENTS, read_script
from launcher.tools.importing.launch import ImportedLaunch, import_launch
from launcher.tools.importing.launches import Launch, launch_of

WIDTH = 116


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
    imported = list[ImportedLaunch]()
    for launch in launches if only is None else launches[only - 1 : only]:
        with tempfile.TemporaryDirectory() as folder:
            ready, notes = with_written_config(launch, reading.written, reading.placeholders, Path(folder))
            one = import_launch(ready, reading.placeholders)
        imported.append(replace(one, launch=launch, notes=[*notes, *one.notes]))
    return ImportedScript(path, imported, problems, [f"{each.place}: {each}" for each in reading.open])


def with_written_config(
    launch: Launch, written: Mapping[str, str], placeholders: Sequence[str], folder: Path
) -> tuple[Launch, list[str]]:
    """The launch with its config of Hydra in `folder`, where the script wrote that config (`cat > conf/own.yaml`) in
    its sandbox, which is gone; else the launch as it is. Also the lines that were left out of the config, and why."""
    flags, others = split_flags(launch.words)
    flag = next((name for name in ("--config-path", "--config-dir") if name in flags), "")
    if not flag or not flags.get("--config-name"):
        return launch, []
    base = "" if flags[flag].startswith("{") else launch.folder  # a placeholder such as {mktemp -d} is a whole path
    path = posixpath.normpath(posixpath.join(base, flags[flag], f"{flags['--config-name']}.yaml"))
    if path not in written:
        return launch, []
    file_name, lines, notes = posixpath.basename(path), list[str](), list[str]()  # the name may be a path, too
    for line in written[path].splitlines():
        if parts := [part for part in placeholders if part and part in line]:
            shown = f"{file_name}: {line.strip()}"
            notes.append(f"{launch.line}: {shown} is left out; only running the script tells {', '.join(parts)}")
        else:
            lines.append(line)
    (folder / file_name).write_text("\n".join([*lines, ""]), encoding="utf-8")
    config = (f"{flag}={folder}", f"--config-name={file_name.removesuffix('.yaml')}")
    return replace(launch, words=(*config, *others)), notes


def recipe_paths(path: Path, count: int) -> list[Path]:
    """name.sh, name-2.sh, ..."""
    return [path, *(path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, count + 1))][:count]


def recipe(made: ImportedLaunch, name: str) -> str:
    """The text of a recipe that makes the imported run."""
    title = f"{type(made.run.algorithm).__name__} of {made.run.model.label}" if made.run else "A run of verl"
    head = [
        f"{title}, imported from {made.name} ({made.launch.program}).",
        f"{name} trainer.experiment_name=first",
        *made.notes,
        *(str(problem) for problem in made.problems),
    ]
    comments = [f"# {line}" for text in head for line in textwrap.wrap(text, WIDTH) or [""]]
    choices_first = sorted(made.arguments, key=lambda text: "." in key_of(text))
    command = "rlrun train " + " \\\n  ".join([*map(shlex.quote, choices_first), '"$@"'])
    return "\n".join(["#!/usr/bin/env bash", *comments, "set -euo pipefail", "", command, ""])
