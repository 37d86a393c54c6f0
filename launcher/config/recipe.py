"""The runs of a recipe: its `rlrun train` commands, each word with its line. Bash runs the script in a sandbox.

recipes/grpo-gsm8k.sh, grpo-gsm8k and recipes/quickstart.sh#2 (the second of several) name one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config import run_file
from launcher.config.arguments import join_options
from launcher.config.compose import groups
from launcher.config.descriptions import fields_of
from launcher.config.request import RunRequest, SourcedOverride
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened, suggest
from launcher.sandbox.reading import can_confine, read_script
from launcher.spec.hardware import Hardware
from launcher.spec.run import RunSpec

_MARKER = "rlrun.argument=of-the-recipe"
"""The one argument that a recipe is run with: a command that contains it passes on overrides (`"$@"`)."""
_BASH_VARIABLES = re.compile(r"BASH.*|SHELLOPTS|ENV|PS4|LD_.*")
"""Variables that would change how bash reads the recipe."""


@dataclass(frozen=True)
class Command:
    """One `rlrun train` of a recipe."""

    name: str
    """`recipes/quickstart.sh#2`; without a number where there is only one."""
    request: RunRequest
    passes_on: bool
    """`"$@"`: overrides given to the recipe are overrides of this run."""


def run_request(overrides: Sequence[str], config_dir: Path | None = None, recipe: str | None = None) -> RunRequest:
    """The recipe's overrides, then the typed ones; a word without `=` may name a YAML file of a run. Raises `Problems`
    where the recipe does not pass the typed ones on."""
    typed = list[SourcedOverride]()
    files = [recipe] if recipe and recipe.lower().endswith(run_file.ENDINGS) else []
    for word in [*files, *overrides]:
        if "=" in word or not word.lower().endswith(run_file.ENDINGS):
            typed.append(SourcedOverride(word, f"command line: {word}"))
            continue
        arguments, config_dir = run_file.arguments_of(Path(word).expanduser(), config_dir)
        typed += [SourcedOverride(text, f"{word}:{line}", "recipe") for text, line in arguments]
    if recipe is None or files:
        return RunRequest(last_choices(typed), config_dir)
    command = one(recipe)
    if overrides and not command.passes_on:
        raise Problems(
            Problem(command.name, f"passes no overrides on, got {short_repr(overrides[0])}", 'add "$@" at its end')
        )
    base = command.request
    return replace(base, overrides=last_choices([*base.overrides, *typed]), config_dir=config_dir or base.config_dir)


def last_choices(overrides: list[SourcedOverride]) -> list[SourcedOverride]:
    """The overrides without a file's for a group that is chosen again on the command line, except settings that every
    choice has, such as the batch size. Of hardware nothing stays: all of its settings are what a choice is."""
    chosen = {word.key for word in overrides if word.source == "command line"} & {*groups()}

    def stays(word: SourcedOverride) -> bool:
        group, _, setting = word.key.partition(".")
        noun = fields_of(RunSpec)[group].annotation if group in chosen else None
        return noun is None or (isinstance(noun, type) and noun is not Hardware and setting in fields_of(noun))

    return [word for word in overrides if word.source == "command line" or stays(word)]


def folder() -> Path:
    return conf_dir().parent / "recipes"


def known() -> list[str]:
    """Names of the recipes of this project."""
    return sorted(path.stem for path in folder().glob("*.sh"))


def one(name: str) -> Command:
    """The command that `name` means. Raises `Problems` where there is none, or more than one."""
    plain, _, number = name.partition("#")
    path = folder() / f"{plain}.sh" if plain in known() else Path(plain)
    runs = commands(path)
    if not runs:
        raise Problems(Problem(name, "has no rlrun train", "use a script with one", "not-found"))
    valid = runs[0].name + (f" to #{len(runs)}" if len(runs) > 1 else "")
    if not number and len(runs) > 1:
        raise Problems(Problem(name, f"has {len(runs)} runs", f"use {valid}"))
    if number and number not in map(str, range(1, len(runs) + 1)):
        raise Problems(Problem(shortened(name), f"has no run #{shortened(number)}", f"use {valid}", "not-found"))
    return runs[int(number or 1) - 1]


def commands(path: Path, environment: Mapping[str, str] = os.environ) -> list[Command]:
    """Every `rlrun train` that the script starts, in its order. Raises `Problems` where it cannot be read."""
    if not path.exists():
        raise Problems(Problem(str(path), "no such recipe", suggest(path.stem, known()), "not-found"))
    is_ours = path.resolve().parent == folder().resolve()
    variables = {name: value for name, value in environment.items() if not _BASH_VARIABLES.fullmatch(name)}
    try:
        reading = read_script(path, [_MARKER], variables, confined=not is_ours or can_confine())
    except OSError as error:
        raise Problems(Problem(str(path), f"cannot be read ({error_message(error)})", code="bad-file")) from error
    if reading.refused:
        raise Problems([*reading.refused])
    name = f"recipes/{path.name}" if is_ours else str(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        _command(name, one.place, lines, one.words[1:], reading.placeholders)
        for one in reading.started if one.name == "rlrun" and one.words[:1] == ("train",)
    ]  # fmt: skip
    if len(found) == 1:
        return found
    return [replace(each, name=f"{each.name}#{number}") for number, each in enumerate(found, 1)]


def _command(name: str, place: str, lines: Sequence[str], words: Sequence[str], placeholders: Sequence[str]) -> Command:
    """The command at `place` (`file:line`); each word's line is searched in the continued lines that follow."""
    first_line, overrides, notes = int(place.rpartition(":")[2]), list[SourcedOverride](), list[str]()
    for word in words:
        where = f"{name}:{_line_with(word.partition('=')[0], lines, first_line)}"
        text = word
        for part in placeholders:
            text = text.replace(part, "unknown")
        if text != word:
            notes.append(f"{where}: {word} stands here as {text}; only a running shell knows it")
        overrides.append(SourcedOverride(text, where, "recipe"))
    arguments = join_options([one for one in overrides if one.text not in (_MARKER, "--")])
    folders = [Path(word.value) for word in arguments if word.shown == "--config-dir"]
    notes += [f"{name}: {word.shown} is left out; it is not an override" for word in arguments
              if word.dashes and word.key != "config-dir"]  # fmt: skip
    own = [word for word in arguments if not word.dashes]
    request = RunRequest(own, folders[-1] if folders else None, tuple(notes))
    return Command(name, request, any(one.text == _MARKER for one in overrides))


def _line_with(key: str, lines: Sequence[str], first: int) -> int:
    """The line of a command that begins in line `first`, and is continued, in which `key` stands; else `first`."""
    line = first
    while line < len(lines) and key not in lines[line - 1] and lines[line - 1].rstrip().endswith("\\"):
        line += 1
    return line if line <= len(lines) and key in lines[line - 1] else first
