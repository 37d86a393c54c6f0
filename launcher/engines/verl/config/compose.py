"""verl's config from the arguments of its command line, and what is wrong with them, without importing verl or torch.

Hydra checks keys only: a value of the wrong type composes, and fails in a worker later. Here each value that is given
is also compared with the field of verl's dataclass, or with the default, that it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.names import verl as names
from launcher.core.problems import Problem, Problems, error_message, nearest, short_repr
from launcher.engines.verl.config import defaults
from launcher.engines.verl.config.defaults import CONFIGS, Program, beside, snapshot
from launcher.engines.verl.config.types import accepts, kind_of_default, words_of
from launcher.engines.verl.rules.settings import at

FLAGS = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
"""Hydra's short options that choose a config."""
_NOTHING = object()
_FAULTS = (HydraException, ValueError, TypeError, AttributeError)  # of applying one argument


@dataclass
class VerlConfig:
    """The config that verl composes of its arguments."""

    config: dict[str, Any]
    """Resolved. What is given with a value of the wrong type has its default in it."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    """What verl accepts and nobody can check: keys that are added, keys that are not read."""


@dataclass
class _Arguments:
    """The arguments of verl's command line, sorted by what they do."""

    name: str
    folder: Path | None = None
    choices: dict[str, str] = field(default_factory=dict)
    values: list[Override] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def compose(words: Sequence[str], program: Program) -> VerlConfig:
    """The config of verl's `main_ppo` (ppo) or `sft_trainer` (sft) with these arguments."""
    base, node, applied, found = _applied(words, program)
    found.config, unresolved = _resolve(node, base)
    found.problems += unresolved
    if wrong := _wrong_values(found.config, base, applied):
        found.problems += wrong.values()
        node = _struct(base)
        for override in applied:
            if override.key_or_group not in wrong:
                _update(node, override)
        found.config, _ = _resolve(node, base)
    return found


@lru_cache(64)  # 0.2 s
def key_problems(words: tuple[str, ...], program: Program) -> list[Problem]:
    """What `compose` finds wrong with keys alone: those that verl has not, and those that it does not read."""
    return [problem for problem in _applied(words, program)[-1].problems if problem.code == "unknown-setting"]


def _applied(words: Sequence[str], program: Program) -> tuple[dict[str, Any], DictConfig, list[Override], VerlConfig]:
    """verl's own config, the same with the arguments applied, these arguments, and what is wrong with the others."""
    arguments = _read(words, program)
    try:
        base = defaults.load(program, arguments.name, arguments.choices, arguments.folder)
    except Problems as error:
        arguments.problems += error.problems
        base = defaults.load(program, CONFIGS[program][0], {})
    found, node = VerlConfig({}, arguments.problems), _struct(base)
    return base, node, _apply(node, base, arguments.values, program, found), found


def _read(words: Sequence[str], program: Program) -> _Arguments:
    arguments = _Arguments(CONFIGS[program][0])
    groups = snapshot()[program]["groups"]
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("-"):
            _read_flag(word, waiting, arguments)
            continue
        try:
            override = OverridesParser.create().parse_override(word)
        except (HydraException, UnicodeEncodeError) as error:
            home = re.search(r"(^|[,\[:])~", word.partition("=")[2])
            fix = "use $HOME, as bash leaves ~ there, or the whole path" if home else "use key=value"
            arguments.problems.append(Problem(short_repr(word), f"hydra cannot read it: {error_message(error)}", fix))
            continue
        key = override.key_or_group
        if override.is_sweep_override():
            fix = f"use {key}=[...] for a list, or one value"
            arguments.problems.append(Problem(key, "several values: verl takes one config", fix))
        elif override.package is not None or (key in groups and override.type == OverrideType.CHANGE):
            arguments.choices[override.get_key_element()] = str(override.value())
        elif not key.startswith(("hydra.", "hydra/")):
            arguments.values.append(override)
    return arguments


def _read_flag(word: str, waiting: list[str], arguments: _Arguments) -> None:
    flag, equals, value = word.partition("=")
    flag = FLAGS.get(flag, flag)
    if flag not in FLAGS.values():
        got = "changes what hydra does, not the config"
        arguments.problems.append(Problem(flag, got, "leave it out", "not-supported"))
        return
    if not equals:
        value = waiting.pop(0) if waiting else ""
    if flag == "--config-name":
        arguments.name = value.removesuffix(".yaml")
    elif (folder := Path(value).expanduser()).is_dir():
        arguments.folder = folder
    else:
        got = f"there is no folder {value}"
        arguments.problems.append(Problem(flag, got, "use the folder's whole path", "not-found"))


def _apply(
    node: DictConfig, base: dict[str, Any], values: Iterable[Override], program: Program, found: VerlConfig
) -> list[Override]:
    """Applies the values that Hydra can apply, one after another, and returns them; what is wrong with the others, and
    notes, go to `found`."""
    applied: list[Override] = []
    for override in values:
        try:
            if override.is_delete() and at(base, override.key_or_group, _NOTHING) is not _NOTHING:
                raise ValueError("verl reads it")
            _update(node, override)
        except _FAULTS as error:
            found.problems.append(_refusal(override, program, node, base, error))
            continue
        applied.append(override)
        if not override.is_delete():
            problem, note = _unread(override, base)
            found.problems += [problem] if problem else []
            found.notes += [note] if note else []
    return applied


def _struct(base: dict[str, Any]) -> DictConfig:
    """A config in which only keys that are there can be set."""
    node: DictConfig = OmegaConf.create(base)
    OmegaConf.set_struct(node, True)
    return node


def _update(node: DictConfig, override: Override) -> None:
    """Applies one value. Raises one of `_FAULTS`."""
    if override.type == OverrideType.CHANGE and _key_is_missing(node, override.key_or_group):
        raise ValueError("is not there")
    ConfigLoaderImpl._apply_overrides_to_config([override], node)


def _key_is_missing(node: DictConfig, key: str) -> bool:
    """Whether a section on the way has no such key; OmegaConf says so, too, and copies the whole config to do it."""
    section: Any = node
    for name in key.split(".") if "[" not in key else ():
        if not isinstance(section, DictConfig):
            return False
        if name not in section.keys():  # noqa: SIM118  # a value that is missing is no member, and can be set
            return True
        section = OmegaConf.select(section, name, throw_on_missing=False)
    return False


def _refusal(override: Override, program: Program, node: DictConfig, base: dict[str, Any], error: Exception) -> Problem:
    key, parent = override.key_or_group, override.key_or_group.rpartition(".")[0]
    known = sorted(_keys(base))
    if override.is_delete() or key in known:
        if override.is_add():
            return Problem(key, "+ adds a key, and verl has this one", f"use {key}=", "conflicting-settings")
        got = error_message(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        if override.is_delete() and isinstance(error, HydraException):
            there = _value_at(node, key) is not None
            got = "has another value than the one to be deleted" if there else "is not there to be deleted"
        return Problem(key, got, "leave ~ out, and give a value", "unknown-setting")
    if isinstance(_value_at(node, parent), str | int | float):
        return Problem(key, f"{parent} has a value, not settings", code="unknown-setting")
    return Problem(key, "verl has no such key", _advise(key, program, known, base), "unknown-setting")


def _value_at(node: DictConfig, key: str) -> Any:
    """None where the config has no such key, or no value there."""
    with suppress(OmegaConfBaseException):
        return OmegaConf.select(node, key, throw_on_missing=False)
    return None


def _advise(key: str, program: Program, known: Sequence[str], base: dict[str, Any]) -> str:
    """What to do about a key that verl does not have."""
    if advice := names.advice(key, program):
        return advice
    new = names.todays_key(key, program) or key
    if program == "ppo" and (read := names.read_key(new)) is not None:
        new = read
        if not read:
            return "leave it out"
    if new != key and (new.startswith("+") or new in known or _is_free(new)):
        return f"use {new}"
    if near := nearest_key(new, known):
        return f"did you mean {near}?"
    section, _, name = key.rpartition(".")
    is_field = name in (_fields(at(base, section)) or ()) and _is_dataclass(key)
    return f"use +{key}=" if is_field else f"use +{key}= where code of yours reads it"


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant: one with a similar last name in the same section, the only one with this last
    name below the same first name, or a similar one as a whole."""
    section, _, last = key.rpartition(".")
    inside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    begun = [name for name in inside if name.startswith(last) and len(last) > 1]
    if near := begun[0] if len(begun) == 1 else nearest(last, inside, cutoff=0.75):
        return f"{section}.{near}".lstrip(".")
    same = [name for name in known if name.rpartition(".")[2] == last]
    if section:  # `model.path` is not that of `model_engine`
        same = [name for name in same if name.partition(".")[0] == key.partition(".")[0]]
    return same[0] if len(same) == 1 else nearest(key, known, cutoff=0.85)


def _is_free(key: str) -> bool:
    return f"{key}.".startswith(tuple(f"{place}." for place in beside()["free"]))


def _is_dataclass(key: str) -> bool:
    return f"{key}.".startswith(tuple(f"{place}." for place in beside()["dataclasses"]))


def _unread(override: Override, base: dict[str, Any]) -> tuple[Problem | None, Problem | None]:
    """What is composed and not read: a problem where that changes the run or fails, otherwise a note."""
    key, value = override.key_or_group, override.value()
    if (new := names.read_key(key)) is not None:
        fix = f"use {new}" if new else "leave it out"
        problem = Problem(key, "composes, but main_ppo does not read it", fix, "unknown-setting")
        off = value in (None, False) and not (new and _is_free(new))  # a place of which verl has no default
        same = off or (not isinstance(value, dict) and value == at(base, new))
        return (None, problem) if same else (problem, None)
    if at(base, key, _NOTHING) is not _NOTHING or _is_free(key):
        return None, None
    place, name = _first_new(base, key)
    section = at(base, place, {}) if place else {}
    fields = _fields(section)
    if fields is None or not _is_dataclass(key):
        return None, Problem(key, "is added to verl's config, which does not know it", "check its spelling")
    if name in fields:
        return None, None
    got = f"{str(section['_target_']).rpartition('.')[2]} of verl has no field {name}"
    near = nearest(name, list(fields))
    return Problem(key, got, f"did you mean {place}.{near}?" if near else "leave it out", "unknown-setting"), None


def _first_new(node: dict[str, Any], key: str) -> tuple[str, str]:
    """The deepest section of `key` that is there, and the name of what is new in it."""
    parts = key.split(".")
    there = next((end for end in range(len(parts) - 1, 0, -1) if isinstance(at(node, ".".join(parts[:end])), dict)), 0)
    return ".".join(parts[:there]), parts[there]


def _resolve(node: DictConfig, base: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A config without interpolations; where they lead nowhere, the config without any argument and a problem."""
    try:
        resolved: dict[str, Any] = OmegaConf.to_container(node, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
        return resolved, []
    except OmegaConfBaseException as error:
        container: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(base), resolve=True)  # type: ignore[assignment]
        where = str(error.full_key or "config")
        return container, [Problem(where, error_message(error), "use a key that verl has in ${...}")]


def _wrong_values(config: dict[str, Any], base: dict[str, Any], values: Iterable[Override]) -> dict[str, Problem]:
    """Of each argument, the first value that verl cannot use."""
    found: dict[str, Problem] = {}
    for override in values:
        if not override.is_delete():
            given = override.key_or_group
            problems = (_wrong_value(key, value, base) for key, value in _leaves(given, at(config, given)))
            if problem := next(filter(None, problems), None):
                found[given] = problem
    return found


def _wrong_value(key: str, value: Any, base: dict[str, Any]) -> Problem | None:
    default = at(base, key)
    if isinstance(default, dict):
        may_be_null = key in beside()["optional"] or ("_target_" not in default and "." in key)
        if isinstance(value, dict) or (value is None and may_be_null):
            return None
        return Problem(key, f"{short_repr(value)} is one value, and this a section", f"use {key}.NAME=")
    kind = _kind(key, default, base)
    if accepts(kind, value) or (isinstance(default, list) and isinstance(value, str) and "str" in kind):
        return None
    better = int(value) if "int" in kind and isinstance(value, float) and value == int(value) else None
    got = f"got {short_repr(value)}, which verl takes and cannot use"
    return Problem(key, got, f"use {words_of(kind) if better is None else better}", value=better)


def _kind(key: str, default: Any, base: dict[str, Any]) -> str:
    """The type of a setting: of the dataclass's field, otherwise of the default."""
    parent, _, last = key.rpartition(".")
    known = beside()["types"]
    kind: str = known.get(key) or known.get(last) or (_fields(at(base, parent)) or {}).get(last, "Any")
    return kind_of_default(key, default) if kind == "Any" or "Config" in kind else kind


def _fields(section: Any) -> dict[str, str] | None:
    """The fields of the dataclass that verl makes of a section, with their types; None where it makes none."""
    target = section.get("_target_") if isinstance(section, dict) else None
    found: dict[str, str] | None = snapshot()["classes"].get(str(target).rpartition(".")[2]) if target else None
    return found


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _keys(node: dict[str, Any], place: str = "") -> Iterator[str]:
    for name, value in node.items():
        if not str(name).startswith("_"):
            yield f"{place}{name}"
            if isinstance(value, dict):
                yield from _keys(value, f"{place}{name}.")
