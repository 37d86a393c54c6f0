"""The runs of a recipe: its `rlrun train` commands, each word with its line. Bash runs it where it can do nothing.

recipes/grpo-gsm8k.sh, grpo-gsm8k and recipes/quickstart.sh#2 (the second of several) name one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config import run_file
from launcher.config.compose import groups
from launcher.config.descriptions import fields_of
from launcher.config.request import RunRequest, SourcedOverride
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened, suggest
from launcher.core.redaction import is_secret_name
from launcher.sandbox.reading import can_confine, read_script
from launcher.spec.run import RunSpec

_TAKE_A_VALUE = {"--config-dir", "--resume", "--root"}
_ARGUMENT = "rlrun.argument=of-the-recipe"
"""What a recipe is given: a command that it reaches passes on the overrides of the command line."""
_OF_BASH = re.compile(r"BASH.*|SHELLOPTS|ENV|PS4|LD_.*")
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
    """The recipe's overrides, then those that are typed, of which one may name a YAML file with a run. Raises
    `Problems` where the recipe would not pass those on."""
    typed = list[SourcedOverride]()
    files = [recipe] if recipe and recipe.lower().endswith(run_file.ENDINGS) else []
    for word in [*files, *overrides]:
        if "=" in word or not word.lower().endswith(run_file.ENDINGS):
            typed.append(SourcedOverride(word, f"command line: {word}"))
            continue
        made, config_dir = run_file.arguments_of(Path(word).expanduser(), config_dir)
        typed += [SourcedOverride(text, f"{word}:{line}", "recipe") for text, line in made]
    if recipe is None or files:
        return RunRequest(last_choices(typed), config_dir)
    command = one(recipe)
    if overrides and not command.passes_on:
        raise Problems(
            Problem(command.name, f"passes no overrides on, got {short_repr(overrides[0])}", 'add "$@" at its end')
        )
    own = command.request
    return replace(own, overrides=last_choices([*own.overrides, *typed]), config_dir=config_dir or own.config_dir)


def last_choices(overrides: list[SourcedOverride]) -> list[SourcedOverride]:
    """Without what a file says of a group that is chosen again on the command line; settings that every choice has,
    such as the batch size, stay."""
    chosen = {word.key for word in overrides if word.source == "command line"} & {*groups()}

    def stays(word: SourcedOverride) -> bool:
        group, _, setting = word.key.partition(".")
        noun = fields_of(RunSpec)[group].annotation if group in chosen else None
        return noun is None or (isinstance(noun, type) and setting in fields_of(noun))

    return [word for word in overrides if word.source == "command line" or stays(word)]


def folder() -> Path:
    return conf_dir().parent / "recipes"


def known() -> list[str]:
    """The recipes that come along, by name."""
    return sorted(path.stem for path in folder().glob("*.sh"))


def one(name: str) -> Command:
    """The command that `name` means. Raises `Problems` where there is none, or are several."""
    plain, _, number = name.partition("#")
    path = folder() / f"{plain}.sh" if plain in known() else Path(plain)
    found = commands(path)
    if not found:
        raise Problems(Problem(name, "has no rlrun train", "use a script with one", "not-found"))
    which = found[0].name + (f" to #{len(found)}" if len(found) > 1 else "")
    if not number and len(found) > 1:
        raise Problems(Problem(name, f"has {len(found)} runs", f"use {which}"))
    if number and number not in map(str, range(1, len(found) + 1)):
        raise Problems(Problem(shortened(name), f"has no run #{shortened(number)}", f"use {which}", "not-found"))
    return found[int(number or 1) - 1]


def commands(path: Path, environment: Mapping[str, str] = os.environ) -> list[Command]:
    """Every `rlrun train` that the script starts, in its order. Raises `Problems` where it cannot be read."""
    if not path.exists():
        raise Problems(Problem(str(path), "no such recipe", suggest(path.stem, known()), "not-found"))
    ours = path.resolve().parent == folder().resolve()
    given = {name: value for name, value in environment.items() if not _OF_BASH.fullmatch(name)}
    try:
        reading = read_script(path, [_ARGUMENT], given, confined=not ours or can_confine())
    except OSError as error:
        raise Problems(Problem(str(path), f"cannot be read ({error_message(error)})", code="bad-file")) from error
    if reading.refused:
        raise Problems([*reading.refused])
    name = f"recipes/{path.name}" if ours else str(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        _command(name, one.place, lines, one.words[1:], reading.placeholders)
        for one in reading.started if one.name == "rlrun" and one.words[:1] == ("train",)
    ]  # fmt: skip
    if len(found) == 1:
        return found
    return [replace(each, name=f"{each.name}#{number}") for number, each in enumerate(found, 1)]


def _command(name: str, place: str, lines: Sequence[str], words: Sequence[str], placeholders: Sequence[str]) -> Command:
    """The command at `place` (`file:line`); its words are looked for on the lines that follow."""
    begin, texts, notes = int(place.rpartition(":")[2]), list[SourcedOverride](), list[str]()
    for word in words:
        key, at = word.partition("=")[0], begin
        while at < len(lines) and key not in lines[at - 1] and lines[at - 1].rstrip().endswith("\\"):
            at += 1
        where = f"{name}:{at if at <= len(lines) and key in lines[at - 1] else begin}"
        stands = word
        for part in placeholders:
            stands = stands.replace(part, "unknown")
        if stands != word:
            notes.append(f"{where}: {word} stands here as {stands}; only a running shell knows it")
        texts.append(SourcedOverride(stands, where, "recipe"))
    kept = [one for one in texts if one.text != _ARGUMENT]
    rest, config_dir, others = options_apart(kept)
    notes += [f"{name}: {option} is left out; it is not an override" for option in others]
    return Command(name, RunRequest(rest, config_dir, tuple(notes)), len(kept) < len(texts))


def options_apart(overrides: Sequence[SourcedOverride]) -> tuple[list[SourcedOverride], Path | None, list[str]]:
    """The overrides; the folder that `--config-dir` names; the other options, with their values where these are no
    secrets."""
    rest, config_dir, others = list[SourcedOverride](), None, list[str]()
    left = iter(overrides)
    for word in left:
        option, _, value = word.text.partition("=")
        if not option.startswith("-"):
            rest.append(word)
            continue
        if option in _TAKE_A_VALUE and not value:
            value = next((after.text for after in left), "")
        if option == "--config-dir":
            config_dir = Path(value)
        else:
            others.append(option if is_secret_name(option) else f"{option} {value}".strip())
    return rest, config_dir, others
