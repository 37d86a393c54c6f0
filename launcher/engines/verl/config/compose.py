"""verl's config from the arguments of its command line, and what is wrong with them, without importing verl or torch.

Hydra checks keys only: a value of the wrong type composes, and fails in a worker later. Here each value that is given
is also compared with the field of verl's dataclass, or with the default, that it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.names import verl as names
from launcher.core.composition import parse_override
from launcher.core.problems import Problem, Problems, error_message, nearest, short_repr
from launcher.engines.verl.config import defaults
from launcher.engines.verl.config.defaults import CONFIGS, Program, beside, snapshot
from launcher.engines.verl.config.types import accepts, kind_of_default, words_of
from launcher.engines.verl.rules.settings import at

FLAGS = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
"""Hydra's short options that choose a config."""
_MISSING = object()


@dataclass
class VerlConfig:
    """The config that verl composes from its arguments."""

    config: dict[str, Any]
    """Resolved; a setting whose argument has the wrong type has verl's default."""
    problems: list[Problem]
    notes: list[Problem]
    """What verl accepts but cannot be checked: keys that are added, keys that are not read."""


def compose(words: Sequence[str], program: Program) -> VerlConfig:
    """The config of verl's `main_ppo` (ppo) or `sft_trainer` (sft) with these arguments."""
    base, values, composed = _check_keys(words, program)
    node, last = OmegaConf.create(base), {override.key_or_group: override for override in values}
    OmegaConf.set_struct(node, True)  # a section takes no keys that it does not have
    for override in values:
        key, value = override.key_or_group, override.value()
        problem = _wrong_value(key, value, base) if last[key] is override else None
        try:
            if not problem:
                OmegaConf.update(node, key, value, force_add=override.type != OverrideType.CHANGE)
        except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            problem = Problem(key, error_message(error), f"use {key}=VALUE")
        composed.problems += [problem] if problem else []
    try:
        composed.config = OmegaConf.to_container(node, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        where = str(error.full_key or "config")
        composed.problems.append(Problem(where, error_message(error), "use a key that verl has in ${...}"))
        composed.config = OmegaConf.to_container(OmegaConf.create(base), resolve=True)  # type: ignore[assignment]
    for key in [key for key, override in last.items() if "${" in str(override.value())]:
        if problem := _wrong_value(key, at(composed.config, key), base):
            composed.problems.append(problem)
    return composed


def key_problems(words: Sequence[str], program: Program) -> list[Problem]:
    """The problems of `compose` about keys alone: keys that verl does not have, and keys that it does not read."""
    return [problem for problem in _check_keys(words, program)[-1].problems if problem.code == "unknown-setting"]


def split_flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Hydra's flags that choose a config, by their long names, and the other words."""
    flags, others, remaining = dict[str, str](), list[str](), list(words)
    while remaining:
        word = remaining.pop(0)
        flag, equals, value = word.partition("=")
        flag = FLAGS.get(flag, flag)
        if flag in FLAGS.values():
            value = value if equals else remaining.pop(0) if remaining else ""
            flags[flag] = value.removesuffix(".yaml") if flag == "--config-name" else value
        else:
            others.append(word)
    return flags, others


def _check_keys(words: Sequence[str], program: Program) -> tuple[dict[str, Any], list[Override], VerlConfig]:
    """verl's config before the values, the values whose keys verl takes, and the problems and notes on all others."""
    flags, others = split_flags(words)
    choices, values, composed = dict[str, str](), list[Override](), VerlConfig({}, [], [])
    for word in others:
        composed.problems += _read_word(word, choices, values, snapshot()[program]["groups"])
    name = flags.pop("--config-name", CONFIGS[program][0])
    folders = {flag: Path(value).expanduser() for flag, value in flags.items()}
    composed.problems += [
        Problem(flag, f"there is no folder {flags[flag]}", "use the folder's whole path", "not-found")
        for flag, folder in folders.items() if not folder.is_dir()
    ]  # fmt: skip
    folder = next((folder for folder in folders.values() if folder.is_dir()), None)
    try:
        base = defaults.load(program, name, choices, folder)
    except Problems as error:
        composed.problems += error.problems
        base = defaults.load(program, CONFIGS[program][0], {})
    taken = list[Override]()
    for override in values:
        added = [each.key_or_group for each in taken if each.type != OverrideType.CHANGE]
        if problem := _refusal(override, program, base, added):
            composed.problems.append(problem)
            continue
        taken.append(override)
        problem, note = _check_is_read(override, base)
        composed.problems += [problem] if problem else []
        composed.notes += [note] if note else []
    return base, taken, composed


def _read_word(
    word: str, choices: dict[str, str], values: list[Override], groups: Collection[str]
) -> Iterator[Problem]:
    """Adds an argument to the choices of groups or to the values, or says why it is neither."""
    if word.startswith("-"):
        got = "changes what hydra does, not the config"
        yield Problem(word.partition("=")[0], got, "leave it out", "not-supported")
        return
    try:
        override = parse_override(word)
    except (HydraException, UnicodeEncodeError) as error:
        home = re.search(r"(^|[,\[:])~", word.partition("=")[2])
        fix = "use $HOME, as bash leaves ~ there, or the whole path" if home else "use key=value"
        yield Problem(short_repr(word), f"hydra cannot read it: {error_message(error)}", fix)
        return
    key = override.key_or_group
    if override.is_sweep_override():
        yield Problem(key, "several values: verl takes one config", f"use {key}=[...] for a list, or one value")
    elif override.package is not None or (key in groups and override.type == OverrideType.CHANGE):
        choices[override.get_key_element()] = str(override.value())
    elif not key.startswith(("hydra.", "hydra/")):
        values.append(override)


def _refusal(override: Override, program: Program, base: dict[str, Any], added: Sequence[str]) -> Problem | None:
    """Why Hydra or verl does not take the key, if so; `added` are keys that earlier arguments add."""
    key, parent = override.key_or_group, override.key_or_group.rpartition(".")[0]
    default = True if key in added else at(base, key, _MISSING)
    if override.is_delete():
        got = "is not there to be deleted" if default is _MISSING else "verl reads it"
        return Problem(key, got, "leave ~ out, and give a value", "unknown-setting")
    if default is not _MISSING:
        is_free = default is None or isinstance(override.value(), dict | list)
        if override.type != OverrideType.ADD or is_free:
            return None
        return Problem(key, "+ adds a key, and verl has this one", f"use {key}=", "conflicting-settings")
    if override.type != OverrideType.CHANGE or f"{key}.".startswith(tuple(f"{each}." for each in added)):
        return None
    if isinstance(at(base, parent), str | int | float):
        return Problem(key, f"{parent} has a value, not settings", code="unknown-setting")
    return Problem(key, "verl has no such key", _suggest_fix(key, program, base), "unknown-setting")


def _suggest_fix(key: str, program: Program, base: dict[str, Any]) -> str:
    """What to do about a key that verl does not have."""
    known_keys = sorted(_keys(base))
    if advice := names.advice(key, program):
        return advice
    renamed = names.todays_key(key, program) or key
    if program == "ppo" and (read := names.read_key(renamed)) is not None:
        renamed = read
        if not read:
            return "leave it out"
    if renamed != key and (renamed.startswith("+") or renamed in known_keys or _is_below("free", renamed)):
        return f"use {renamed}"
    if similar := nearest_key(renamed, known_keys):
        return f"did you mean {similar}?"
    section, _, name = key.rpartition(".")
    is_field = name in (_fields(at(base, section)) or ()) and _is_below("dataclasses", key)
    return f"use +{key}=" if is_field else f"use +{key}= where code of yours reads it"


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant: one with a similar last name in the same section, the only one with this last
    name below the same first name, or a similar one as a whole."""
    section, _, last = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    completions = [name for name in siblings if name.startswith(last) and len(last) > 1]
    if similar := completions[0] if len(completions) == 1 else nearest(last, siblings, cutoff=0.75):
        return f"{section}.{similar}".lstrip(".")
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    if section:  # `model.path` does not mean a key of `model_engine`
        same_name = [name for name in same_name if name.partition(".")[0] == key.partition(".")[0]]
    return same_name[0] if len(same_name) == 1 else nearest(key, known, cutoff=0.85)


def _is_below(kind: Literal["free", "dataclasses"], key: str) -> bool:
    """Whether a key is in one of the sections of this kind (`beside.yaml`)."""
    return f"{key}.".startswith(tuple(f"{place}." for place in beside()[kind]))


def _check_is_read(override: Override, base: dict[str, Any]) -> tuple[Problem | None, Problem | None]:
    """A key that composes but is not read: a problem where that changes the run or fails, otherwise a note."""
    key, value = override.key_or_group, override.value()
    if (read_key := names.read_key(key)) is not None:
        fix = f"use {read_key}" if read_key else "leave it out"
        problem = Problem(key, "composes, but main_ppo does not read it", fix, "unknown-setting")
        unset = value in (None, False) and not (read_key and _is_below("free", read_key))  # a free key has no default
        unchanged = unset or (not isinstance(value, dict) and value == at(base, read_key))
        return (None, problem) if unchanged else (problem, None)
    if at(base, key, _MISSING) is not _MISSING or _is_below("free", key):
        return None, None
    place, name = _split_known_section(base, key)
    section = at(base, place, {}) if place else {}
    fields = _fields(section)
    if fields is None or not _is_below("dataclasses", key):
        return None, Problem(key, "is added to verl's config, which does not know it", "check its spelling")
    if name in fields:
        return None, None
    got = f"{str(section['_target_']).rpartition('.')[2]} of verl has no field {name}"
    similar = nearest(name, list(fields))
    return Problem(key, got, f"did you mean {place}.{similar}?" if similar else "leave it out", "unknown-setting"), None


def _split_known_section(node: dict[str, Any], key: str) -> tuple[str, str]:
    """The deepest existing section of `key`, and the first name that it lacks."""
    parts = key.split(".")
    depth = next((end for end in range(len(parts) - 1, 0, -1) if isinstance(at(node, ".".join(parts[:end])), dict)), 0)
    return ".".join(parts[:depth]), parts[depth]


def _wrong_value(key: str, value: Any, base: dict[str, Any]) -> Problem | None:
    """The first value of an argument that verl cannot use. Interpolations are left to verl."""
    if isinstance(value, dict) and value:
        return next(filter(None, (_wrong_value(f"{key}.{name}", inner, base) for name, inner in value.items())), None)
    return None if isinstance(value, str) and "${" in value else _misfit(key, value, base)


def _misfit(key: str, value: Any, base: dict[str, Any]) -> Problem | None:
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
    """The type of a setting: that of the dataclass's field, otherwise that of the default."""
    parent, _, last = key.rpartition(".")
    types = beside()["types"]
    kind: str = types.get(key) or types.get(last) or (_fields(at(base, parent)) or {}).get(last, "Any")
    return kind_of_default(key, default) if kind == "Any" or "Config" in kind else kind


def _fields(section: Any) -> dict[str, str] | None:
    """Type by field of the dataclass that verl makes of a section; None where it makes none."""
    target = section.get("_target_") if isinstance(section, dict) else None
    types: dict[str, str] | None = snapshot()["classes"].get(str(target).rpartition(".")[2]) if target else None
    return types


def _keys(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if not str(name).startswith("_"):
            yield f"{prefix}{name}"
            if isinstance(value, dict):
                yield from _keys(value, f"{prefix}{name}.")
