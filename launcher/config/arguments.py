"""Arguments, sorted by what they do. Each is parsed once, here, by Hydra's grammar; others receive an `Override`."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from launcher.config import slips
from launcher.config.nodes import PLAIN, TARGET, walk
from launcher.config.request import SourcedOverride
from launcher.config.slips import FindRun
from launcher.core.composition import parse_override
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, short_repr, shortened, suggest
from launcher.core.redaction import is_secret_name

PARTS = "reward.parts"
OPTIONS = (
    "--config-dir", "--resume", "--from", "--root", "--dry-run", "--detach", "--multirun", "--parallel", "--recipe",
    "--source", "--json", "--help",
)  # fmt: skip
"""Options of train and plan; an unknown one that is like none of them is a setting with dashes."""
_TARGET = re.compile(rf"(?<!\w){TARGET}(?!\w)")  # not as a part of lora_target_modules
_RESOLVER = re.compile(r"\$\{[^}]*[:$]")  # ${oc.env:HOME}, ${oc.${name}:HOME}: they reach outside the config
_COMMA_IN_NUMBER = re.compile(r"[-+]?0,\d{2,}|[1-9]\d{0,2}(?:,\d{3})+")  # a sweep in Hydra, too
_OPTION = re.compile(r"(?P<dashes>--?)(?P<name>[A-Za-z][\w./-]*)(?:=(?P<value>.*))?", re.DOTALL)
_ARGUMENT = re.compile(r"[+~]*[A-Za-z_][\w./@]*=|~[A-Za-z_][\w./@]*\Z")


@dataclass
class Arguments:
    """The arguments, sorted by what they do."""

    choices: dict[str, Override] = field(default_factory=dict)
    """Group -> the override that chooses its file."""
    values: list[Override] = field(default_factory=list)
    """Overrides that set a value."""
    sources: list[tuple[SourcedOverride, Override]] = field(default_factory=list)
    """Choices and values, each with the argument it comes from; a path in place of a choice makes two overrides."""
    problems: list[Problem] = field(default_factory=list)
    unknown: list[SourcedOverride] = field(default_factory=list)
    """Arguments that name no setting of ours."""
    doubtful: set[str] = field(default_factory=set)
    """Refused settings, and groups whose choice was refused: further problems there follow from that."""
    no_choices: list[tuple[str, str]] = field(default_factory=list)
    """(group, choice) where the group has no such choice."""

    @property
    def texts(self) -> dict[str, str]:
        """Settings and their values, as they were typed."""
        return {each.key_or_group: text_of(each) for each in self.values}

    def refuse(self, problem: Problem, key: str = "") -> None:
        self.problems.append(problem)
        self.doubtful.update({key or problem.where} - {""})


def join_options(words: Sequence[SourcedOverride]) -> list[SourcedOverride]:
    """The arguments; an option is one with the values that follow: `--learning_rate 5e-6` is `learning_rate=5e-6`."""
    arguments, left = list[SourcedOverride](), deque(words)
    while left:
        word = left.popleft()
        if option := _OPTION.fullmatch(word.text):
            name, value = option["name"], option["value"]
            if value is None:
                # what follows the name of a secret is its value, whatever it looks like: it must not be shown
                is_secret, values = is_secret_name(name), list[str]()
                while left and ((is_secret and not values) or _is_value(left[0].text)) and (is_secret or not values):
                    values.append(left.popleft().text)
                value = " ".join(values) or "true"
            word = replace(word, text=f"{name}={value}", dashes=option["dashes"])
        arguments.append(word)
    return arguments


def _is_value(text: str) -> bool:
    return not (_OPTION.fullmatch(text) or _ARGUMENT.match(text))


def read_arguments(
    words: Sequence[SourcedOverride], files: Mapping[str, Mapping[str, Path]], find_run: FindRun | None = None
) -> Arguments:
    """The arguments; a problem for each that cannot be one. `files` are the choices of each config group."""
    arguments = Arguments()
    groups = {group: sorted(choices) for group, choices in files.items()}
    queue = deque(words)
    while queue:
        word = queue.popleft()
        if word.dashes:
            arguments.unknown.append(word)
            continue
        if parts := slips.several_in_one(word.text, (*groups, *PLAIN)):
            got = f"holds {len(parts)} arguments in one pair of quotes"
            arguments.problems.append(Problem(short_repr(word.text), got, f"use {shortened(shlex.join(parts), 1000)}"))
            queue.extendleft(replace(word, text=part) for part in reversed(parts))
            continue
        override = _read_word(word, arguments, groups)
        if override is None:
            continue
        key = override.key_or_group
        meant = _meant_by_value(override, files[key], find_run) if key in groups else []
        if meant:
            queue.extendleft(replace(word, text=text) for text in reversed(meant))
        else:
            _sort(override, word, arguments, groups)
    _choose_model(arguments, files.get("model", {}))
    return arguments


def _choose_model(arguments: Arguments, files: Mapping[str, Path]) -> None:
    """`model.path=ID` alone, or with model=hf, means what `model=ID` does."""
    chosen, path = arguments.choices.get("model"), arguments.texts.get("model.path", "").strip("'\"")
    if path and (chosen is None or text_of(chosen) == "hf") and "hf" in files:
        arguments.choices["model"] = parse(slips.known_choice("model", "model.path", path, files) or "model=hf")


def _read_word(word: SourcedOverride, arguments: Arguments, groups: Mapping[str, Sequence[str]]) -> Override | None:
    """The word as Hydra parses it, quoted where its value needs quotes; None where it is refused."""
    text, settable = word.text, (*groups, *PLAIN)
    key, equals, value = text.partition("=")
    name = key.lstrip("+~").strip()
    problem = slips.other_characters(text, settable)
    if not problem and not equals and not text.startswith("~"):
        problem = slips.without_equals(text, groups, settable)
    if problem:
        arguments.refuse(problem)
        return None
    try:
        return parse(f"{key}=null" if value == "None" else text)
    except Problems as unreadable:
        if not equals or not re.fullmatch(r"[\w.]*[a-z][\w.]*", name):
            arguments.problems.extend(unreadable.problems)
        elif name.partition(".")[0] not in settable:
            arguments.unknown.append(replace(word, text=f"{name}={value.strip()}"))
        elif value and value[0] not in "'\"[{(" and not set(value) & set('"\\$') and value.isprintable():
            return parse(f"{key}={quoted(value)}")
        else:
            arguments.refuse(slips.unreadable(name, value))
    return None


def _sort(override: Override, word: SourcedOverride, arguments: Arguments, groups: Mapping[str, Sequence[str]]) -> None:
    """Add one override to the part of `arguments` that it belongs to, or refuse it."""
    key = override.key_or_group
    top, value = key.partition(".")[0], None if removes(override) else override.value()
    if problem := next(_refusals(override, groups), None):
        arguments.refuse(problem, key)
        arguments.doubtful.update(get_close_matches(top, groups, n=1) if top not in groups else [])
    elif top not in (*groups, *PLAIN):
        arguments.unknown.append(replace(word, text=f"{key}={text_of(override)}"))
    elif key in groups and value is not None and value not in groups[key]:
        arguments.no_choices.append((key, str(value)))
    elif key == PARTS and isinstance(value, dict):
        _choose_parts(value, groups["reward"], arguments)
        arguments.sources.append((word, override))
    else:
        arguments.sources.append((word, override))
        if key not in groups:
            arguments.values.append(allowed_to_add(override))
            return
        override = parse(f"~{key}" if removes(override) else f"{key}={value}")  # a choice is never added
        if text_of(first := arguments.choices.setdefault(key, override)) != text_of(override):
            got = f"chosen twice, as {first.input_line} and {override.input_line}"
            arguments.refuse(Problem(key, got, "keep one of the two", "conflicting-settings"), key)


def _meant_by_value(override: Override, choices: Mapping[str, Path], find_run: FindRun | None) -> list[str]:
    """The arguments that a value stands for where it is not a choice; values with commas between stand for a list."""
    text = text_of(override)
    if removes(override) or override.package is not None or "${" in text:
        return []
    value = override.value()
    if override.is_sweep_override() and (not override.is_choice_sweep() or "(" in text):
        return []
    text = value if isinstance(value, str) else f"[{text}]" if override.is_sweep_override() else text
    return [] if text in choices else slips.choice_of_value(override.key_or_group, text, choices, find_run)


def text_of(override: Override) -> str:
    """The value as it was typed."""
    return (override.input_line or "").partition("=")[2]


def removes(override: Override) -> bool:
    """Whether it is `~key`, which removes what config files set there."""
    return override.type == OverrideType.DEL


def parse(word: str) -> Override:
    """A word, parsed by Hydra's grammar. Raises `Problems` where it cannot be read as an override."""
    try:
        return parse_override(word)
    except (HydraException, UnicodeEncodeError) as error:
        raise Problems(Problem(short_repr(word), "cannot be read", "use key=value")) from error


def _choose_parts(weights: dict[Any, Any], choices: Sequence[str], arguments: Arguments) -> None:
    """`reward.parts={gsm8k: 1.0}` becomes a choice of the group reward, put at `reward.parts.gsm8k`, and a weight."""
    for name, weight in weights.items():
        if name not in choices:
            problem = Problem(PARTS, f"no choice {name!r}", suggest(str(name), choices), "unknown-choice")
            arguments.refuse(problem, "reward")
        else:
            arguments.choices[f"{PARTS}.{name}"] = parse(f"+reward@{PARTS}.{name}={name}")
            arguments.values.append(parse(f"++reward.weights.{name}={weight}"))


def _refusals(override: Override, groups: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Why an argument is refused, the first reason first; none where it is taken."""
    key, line = override.key_or_group, override.input_line or ""
    top, value = key.partition(".")[0], None if removes(override) else override.value()
    if not top:
        yield Problem(short_repr(line), "names no setting", "use key=value")
    if _RESOLVER.search(line):
        yield Problem(key, "${...:...} is for config files only", "write the value itself", "not-permitted")
    if override.is_sweep_override() and top in (*groups, *PLAIN):
        yield _sweep_problem(key, text_of(override), line)
    if override.package is not None:
        yield Problem(short_repr(line), "a choice has the name of its group", f"use {top}=CHOICE")
    if top == "hydra" or key.startswith("hydra/"):
        yield Problem(key, "Hydra's own settings are not part of a run", "leave it out", "not-permitted")
    if _TARGET.search(key) or names_target(value):
        yield Problem(key, f"{TARGET} is named by config files only", f"use {top}=CHOICE", "not-permitted")
    if not removes(override):
        yield from _refusals_of_value(key, value, groups)


def _sweep_problem(key: str, text: str, line: str) -> Problem:
    if _COMMA_IN_NUMBER.fullmatch(text):
        got = f"got {short_repr(text)}, with a comma in a number"
        return Problem(key, got, f"use {key}={slips.number_meant(text)}")
    list_hint = "" if "(" in text or "." not in key else f", or for a list '{key}=[{text}]'"
    return Problem(key, f"{short_repr(line)} is a sweep", f"use -m, or one value{list_hint}")


def _refusals_of_value(key: str, value: Any, groups: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    if key in groups and not isinstance(value, str):
        choice = next((each for each in value if each in groups[key]), None) if isinstance(value, list) else None
        fix = f"use one choice: {key}={choice}" if choice else suggest("", groups[key])
        yield Problem(key, f"{short_repr(value)} is not a choice", fix, "unknown-choice")
    if key in ("optim", "critic", "trainer") and not isinstance(value, dict):
        yield Problem(key, f"got {short_repr(value)}, and it is a group of settings", f"use {key}.SETTING=VALUE")


def names_target(value: Any) -> bool:
    return any(_TARGET.search(place) for place, _ in walk(value))


def allowed_to_add(override: Override) -> Override:
    """Settings have their defaults in classes, not in YAML, so a plain `key=value` must be allowed to add."""
    plain = override.type in (OverrideType.CHANGE, OverrideType.ADD)
    return replace(override, type=OverrideType.FORCE_ADD) if plain else override
