"""The runs of a recipe: its `rlrun train` commands, each word with its line. Nothing of it is run.

recipes/grpo-gsm8k.sh, grpo-gsm8k and recipes/quickstart.sh#2 (the second of several) name one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.config import run_file
from launcher.config.compose import groups
from launcher.config.descriptions import fields_of
from launcher.config.guard import LONGEST
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.shell import ARGUMENTS, Piece, ShellReader, Word
from launcher.core.bounded_parse import SIZE, LimitExceeded
from launcher.core.files import conf_dir, read_file
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened, suggest
from launcher.spec.run import RunSpec

_BRANCH, _END = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
_LEADS = {"then", "do", "else", "elif", "{", "!", "time", "exec", "command", "env", "export", "local", "readonly"}
_TAKE_A_VALUE = {"--config-dir", "--resume", "--root"}
_REDIRECTS = re.compile(r"\d*[<>]")


@dataclass(frozen=True)
class Command:
    """One `rlrun train` of a recipe."""

    name: str
    """`recipes/quickstart.sh#2`; without a number where there is only one."""
    request: RunRequest
    passes_on: bool
    """`"$@"`: overrides given to the recipe are overrides of this run."""


@dataclass(frozen=True)
class Value:
    text: str
    unknown: str = ""
    """What only a running shell knows of it."""
    variables: tuple[str, ...] = ()
    """Environment variables that it comes from."""


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
    chosen = {word.text.partition("=")[0] for word in overrides if word.source == "command line"} & {*groups()}

    def stays(word: SourcedOverride) -> bool:
        name = word.text.partition("=")[0]
        group, _, setting = name.partition(".")
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
    """Every `rlrun train` of the script, in its order. Raises `Problems` where it cannot be read."""
    try:
        text = read_file(path, SIZE).decode()
    except FileNotFoundError:
        raise Problems(Problem(str(path), "no such recipe", suggest(path.stem, known()), "not-found")) from None
    except (OSError, ValueError) as error:
        got = f"cannot be read ({error_message(error)})"
        raise Problems(Problem(str(path), got, "use a shell script", "bad-file")) from error
    inside = path.resolve().parent == folder().resolve()
    script = _Script(f"recipes/{path.name}" if inside else str(path), environment)
    try:
        found = list(script.read(text))
    except LimitExceeded as error:
        raise Problems(error.in_file(script.name)) from error
    if len(found) == 1:
        return found
    return [replace(each, name=f"{each.name}#{number}") for number, each in enumerate(found, 1)]


@dataclass
class _Script:
    name: str
    environment: Mapping[str, str]
    variables: dict[str, Value] = field(default_factory=dict)

    def read(self, text: str) -> Iterator[Command]:
        depth = 0
        for words in ShellReader(text).commands():
            plain = [str(word) for word in words]
            depth += sum(word in _BRANCH for word in plain[:1]) - sum(word in _END for word in plain[:1])
            if plain[0] in ("for", "select") and len(plain) > 1:
                self.variables[plain[1]] = Value(plain[1], "what a loop goes through")
            while plain and plain[0] in _LEADS | _BRANCH:
                plain, words = plain[1:], words[1:]
            begins = next((place for place, word in enumerate(plain) if Path(word).name == "rlrun"), None)
            if begins is not None and plain[begins + 1 : begins + 2] == ["train"]:
                yield self._command(words[begins + 2 :], branch=bool(depth))
            elif begins is None:
                self._assign(words)

    def _assign(self, words: list[Word]) -> None:
        """The variables that a command begins with: `a=1 b="$a"`."""
        for word in words:
            name, *rest = word.pieces
            if rest[:1] != [Piece("=")] or name != Piece(name.text) or not name.text.isidentifier():
                return
            value = self._value(rest[1:], word.line)
            self.variables[name.text] = replace(value, text=name.text) if value.unknown else value

    def _command(self, words: list[Word], branch: bool) -> Command:
        words_read, notes, passes_on = list[SourcedOverride](), list[str](), False
        if branch:
            notes.append(f"{self.name}:{words[0].line if words else 0}: stands in a loop or a condition")
        for word in words:
            if _REDIRECTS.match(str(word)):
                break
            if any(piece.name == ARGUMENTS for piece in word.pieces):
                passes_on = True
                continue
            where, value = f"{self.name}:{word.line}", self._value(word.pieces, word.line)
            if value.unknown:
                excluded = "=" not in value.text
                stands = "is left out" if excluded else f"stands here as {value.text}"
                notes.append(f"{where}: {word} {stands}; only a running shell knows {value.unknown}")
                if excluded:
                    continue
            where += "".join(f", environment {name}" for name in value.variables)
            split = all(piece.quoted or not piece.name for piece in word.pieces)
            words_read += [
                SourcedOverride(text, where, "recipe") for text in ([value.text] if split else value.text.split())
            ]
        rest, config_dir, others = options_apart(words_read)
        notes += [f"{self.name}: {option} is left out; it is not an override" for option in others]
        return Command(self.name, RunRequest(rest, config_dir, tuple(notes)), passes_on)

    def _value(self, pieces: Sequence[Piece], line: int) -> Value:
        values, size = list[Value](), 0
        for piece in pieces:
            values.append(self._of(piece, line))
            size += len(values[-1].text) + len(values[-1].unknown)  # `a=$b$b`, thirty times over, is a gigabyte
            if size > LONGEST:
                raise LimitExceeded(f"a value has more than {LONGEST:,} characters", "use a shorter one", line)
        unknown = ", ".join(dict.fromkeys(value.unknown for value in values if value.unknown))
        names = dict.fromkeys(name for value in values for name in value.variables)
        return Value("".join(value.text for value in values), unknown, tuple(names))

    def _of(self, piece: Piece, line: int) -> Value:
        if not piece.name:
            return Value(piece.text)
        if piece.name in self.variables:
            return self.variables[piece.name]
        if self.environment.get(piece.name):
            return Value(self.environment[piece.name], variables=(piece.name,))
        if piece.default is not None:
            return self._value(piece.default, line)
        stands = piece.name if piece.name.isidentifier() else "unknown"
        return Value(stands, piece.text)


def options_apart(overrides: Sequence[SourcedOverride]) -> tuple[list[SourcedOverride], Path | None, list[str]]:
    """The overrides; the folder that `--config-dir` names; the other options with their values."""
    rest, config_dir, others = list[SourcedOverride](), None, list[str]()
    left = iter(overrides)
    for word in left:
        option, _, value = word.text.partition("=")
        if not option.startswith("--"):
            rest.append(word)
            continue
        if option in _TAKE_A_VALUE and not value:
            value = next((after.text for after in left), "")
        if option == "--config-dir":
            config_dir = Path(value)
        else:
            others.append(f"{option} {value}".strip())
    return rest, config_dir, others
