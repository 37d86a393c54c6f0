"""Arguments, sorted by what they do: Hydra's grammar, and what people type beside it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from launcher.config import typed
from launcher.config.nodes import TARGET, walk
from launcher.config.options import Unknown
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, short_repr, suggest

PARTS = "reward.parts"
PLAIN = ("optim", "critic", "trainer", "seed")
"""Settings of a run that are no config group and that arguments set."""
_REFERENCE = re.compile(r"\$\{([^${}:]*)\}")
_TARGET = re.compile(rf"(?<!\w){TARGET}(?!\w)")  # not that of lora_target_modules
_RESOLVER = re.compile(r"\$\{[^}]*[:$]")  # ${oc.env:HOME}, ${oc.${name}:HOME}: they reach outside the config


@dataclass
class Arguments:
    """The arguments, sorted by what they do."""

    choices: dict[str, str] = field(default_factory=dict)
    """The word that chooses, for each group that has one."""
    values: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    """Those that name no setting of ours."""
    doubtful: set[str] = field(default_factory=set)
    """Settings, and groups whose choice was refused: what else goes wrong there follows from that."""
    no_choices: list[tuple[str, str]] = field(default_factory=list)
    """Groups with choices that they do not have."""

    @property
    def texts(self) -> dict[str, str]:
        """Settings and their values, as they were typed."""
        return {key_of(word): word.partition("=")[2] for word in self.values}


def read_arguments(overrides: Sequence[str], files: Mapping[str, Mapping[str, Path]]) -> Arguments:
    """Overrides that Hydra can take, in the spelling it takes; a problem for each of the others. `files` are the
    choices of each config group."""
    arguments, settable = Arguments(), (*files, *PLAIN)
    known = {group: sorted(choices) for group, choices in files.items()}
    rest, spaced = typed.joined(overrides, settable)
    for each in spaced:
        _refuse(arguments, each, each.where)
    waiting = deque(rest)
    while waiting:
        word = waiting.popleft()
        key, equals, value = word.partition("=")
        key = key.lstrip("+~")
        if equals and key.partition(".")[0] in settable and value != (plain := typed.without_scheme(key, value)):
            word, value = f"{word.partition('=')[0]}={plain}", plain
        elif value == "None":
            word, value = f"{word.partition('=')[0]}=null", "null"
        problem = None if word.isascii() else typed.slip(word, key, value, settable)
        if not problem and (value.startswith("=") or not re.fullmatch(r"[\w.@/-]*", key)):
            problem = typed.misplaced(word, settable)
        if not problem and not equals and not word.startswith("~"):
            problem = typed.without_equals(word, known, settable)
        if problem:
            _refuse(arguments, problem, problem.where)
        elif override := _parsed(word, arguments, settable):
            waiting.extendleft(reversed(_take(override, word, arguments, files, known)))
    return arguments


def _refuse(arguments: Arguments, problem: Problem, key: str) -> None:
    arguments.problems.append(problem)
    arguments.doubtful.update([key] if key else [])


def _parsed(word: str, arguments: Arguments, settable: Sequence[str]) -> Override | None:
    """The word as Hydra reads it, a text with other signs as if it had quotes; None where it is refused."""
    try:
        return parse(word)
    except Problems as unreadable:
        key, _, value = word.lstrip("+~").partition("=")
        key = key.strip()
        if problem := typed.misplaced(word, settable):
            _refuse(arguments, problem, problem.where)
            return None
        named = re.fullmatch(r"[\w.]*[a-z][\w.]*", key)
        if not named or key.partition(".")[0] not in settable:
            if named and "=" in word:
                arguments.unknown.append(Unknown(key, value.strip()))
            else:
                arguments.problems.extend(unreadable.problems)
            return None
        if value and value[0] not in "'\"[{(" and not set(value) & set('"\\$') and value.isprintable():
            return parse(f"{word.partition('=')[0]}={quoted(value)}")
        _refuse(arguments, typed.unreadable(key, value), key)
        return None


def _take(
    override: Override, word: str, arguments: Arguments, files: Mapping[str, Mapping[str, Path]],
    known: dict[str, list[str]],
) -> list[str]:  # fmt: skip
    """Sort one argument in; overrides that stand for it, where it is a path or the like in place of a choice."""
    word = override.input_line or word
    key, spelled = override.key_or_group, spelling(override, word, known)
    top, value = key.partition(".")[0], None if override.type == OverrideType.DEL else override.value()
    if key in known and (meant := _meant_by_value(override, word, files[key])):
        return meant
    if problem := _refusal(override, known):
        _refuse(arguments, problem, key)
        arguments.doubtful.update(get_close_matches(top, known, n=1) if top not in known else [])
    elif top not in (*known, *PLAIN) or (key == "optim" and isinstance(value, str)):
        arguments.unknown.append(Unknown(key, word.partition("=")[2]))
    elif key in known and value is not None and value not in known[key]:
        arguments.no_choices.append((key, str(value)))
    elif key == PARTS and isinstance(value, dict):
        _choose_parts(value, known["reward"], arguments)
    elif key not in known:
        arguments.values.append(spelled)
    elif (first := arguments.choices.setdefault(key, spelled)) != spelled:
        got = f"chosen twice, as {first} and {spelled}"
        _refuse(arguments, Problem(key, got, "keep one of the two", "conflicting-settings"), key)
    return []


def _meant_by_value(override: Override, word: str, choices: Mapping[str, Path]) -> list[str]:
    """What a value that is not a choice stands for."""
    text = word.partition("=")[2]
    if override.type == OverrideType.DEL or override.package is not None or "${" in text:
        return []
    value = override.value()
    text = value if isinstance(value, str) else text
    return [] if text in choices else typed.chosen_by_value(override.key_or_group, text, choices)


def key_of(word: str) -> str:
    """What a word names."""
    return word.lstrip("+~").partition("=")[0]


def parse(word: str) -> Override:
    """A word by Hydra's grammar. Raises `Problems` where it cannot be arguments."""
    try:
        word.encode()
        return OverridesParser.create().parse_override(word)
    except (HydraException, UnicodeEncodeError) as error:
        raise Problems(Problem(short_repr(word), "cannot be read", "use key=value")) from error


def _choose_parts(weights: dict[Any, Any], known: list[str], arguments: Arguments) -> None:
    """`reward.parts={gsm8k: 1.0}` becomes a choice of the group, put there, and its weight."""
    for name, weight in weights.items():
        if name not in known:
            arguments.problems.append(
                Problem(PARTS, f"no choice {name!r}", suggest(str(name), known), "unknown-choice")
            )
            arguments.doubtful.add("reward")
        else:
            arguments.choices[f"{PARTS}.{name}"] = f"+reward@{PARTS}.{name}={name}"
            arguments.values.append(f"++reward.weights.{name}={weight}")


def _refusal(override: Override, known: dict[str, list[str]]) -> Problem | None:
    """Why an argument is refused; None when it is taken."""
    key = override.key_or_group
    top = key.partition(".")[0]
    if not top:
        return Problem(short_repr(override.input_line), "names no setting", "use key=value")
    if _RESOLVER.search(override.input_line or ""):
        return Problem(key, "${...:...} is for config files only", "write the value itself", "not-permitted")
    if override.is_sweep_override() and top in (*known, *PLAIN):
        return _sweep(override)
    names = _REFERENCE.findall(override.input_line or "") if top in (*known, *PLAIN) else []
    if unset := next((name for name in names if name.lstrip(".").partition(".")[0] not in (*known, *PLAIN)), ""):
        got = f"${{{unset}}} is not a setting, and a shell expands no variable in single quotes"
        return Problem(key, got, "write the value itself, or use double quotes")
    if override.package is not None:
        return Problem(short_repr(override.input_line), "a choice has the name of its group", f"use {top}=CHOICE")
    if top == "hydra" or key.startswith("hydra/"):
        return Problem(key, "Hydra's own settings are not part of a run", "leave it out", "not-permitted")
    if _TARGET.search(key) or names_target(override.value()):
        return Problem(key, f"{TARGET} is named by config files only", f"use {top}=CHOICE", "not-permitted")
    removed = override.type == OverrideType.DEL
    value = None if removed else override.value()
    if key in known and not removed and not isinstance(value, str):
        one = isinstance(value, list) and next((each for each in value if each in known[key]), None)
        fix = f"use one choice: {key}={one}" if one else suggest("", known[key])
        return Problem(key, f"{short_repr(value)} is not a choice", fix, "unknown-choice")
    of_others = key == "optim" and isinstance(value, str)  # Hugging Face's name of the optimizer
    if key in ("optim", "critic", "trainer") and not (removed or of_others or isinstance(value, dict)):
        return Problem(key, f"got {short_repr(value)}, and it is a group of settings", f"use {key}.SETTING=VALUE")
    if isinstance(value, str) and "\\" in value and (problem := typed.backslash(key, value)):
        return problem
    return None


def _sweep(override: Override) -> Problem:
    key, text = override.key_or_group, (override.input_line or "").partition("=")[2]
    if re.match(r"(?:[-+]?0,\d{2,}|[1-9]\d{0,2}(?:,\d{3})+)$", text) and (number := typed.number_meant(text)):
        return Problem(key, f"got {short_repr(text)}, with a comma in a number", f"use {key}={number}")
    of_list = "" if "(" in text or "." not in key else f", or for a list '{key}=[{text}]'"
    return Problem(key, f"{short_repr(override.input_line)} is a sweep", f"use -m, or one value{of_list}")


def names_target(value: Any) -> bool:
    return any(_TARGET.search(place) for place, _ in walk(value))


def spelling(override: Override, word: str, known: dict[str, list[str]]) -> str:
    """Settings have their defaults in classes, not in YAML, so a plain `key=value` must be allowed to add."""
    top, _, rest = override.key_or_group.partition(".")
    if not rest and top in known:
        return f"~{top}" if override.type == OverrideType.DEL else word.lstrip("+")
    plain = override.type in (OverrideType.CHANGE, OverrideType.ADD)
    return f"++{word.removeprefix('+')}" if plain else word


@dataclass(frozen=True)
class GivenValue:
    """What a word sets."""

    key: str
    value: Any
    removed: bool
    """`~key`: what files had set there is gone."""


def given_value(word: str) -> GivenValue:
    override = parse(word)
    removed = override.type == OverrideType.DEL
    return GivenValue(override.key_or_group, None if removed else override.value(), removed)
