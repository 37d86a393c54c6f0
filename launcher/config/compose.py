"""Choices and settings -> one node (nested dicts), by Hydra's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf.errors import ConfigKeyError, ConfigTypeError, InterpolationKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from launcher.config import defaults, sources
from launcher.config.arguments import Arguments, parse, removes, text_of
from launcher.config.yaml_lines import defaults_choices
from launcher.core import composition
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened

PLACEHOLDERS = {"algorithm": "algorithm=sft", "model": "model=tiny", "data": "data=reverse"}
"""Choices that need no settings, for groups without a default: with them a run can be checked for other problems."""
_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError)  # of composing


def choices(extra: Path | None = None) -> dict[str, dict[str, Path]]:
    """Config group -> choice -> file: our folder's, else that of `extra`, in the order in which Hydra searches them.
    Folders of `extra` that are not named as one of our groups are ignored."""
    choice_files: dict[str, dict[str, Path]] = {}
    for file in sorted(conf_dir().glob("*/*.yaml")):
        choice_files.setdefault(file.parent.name, {})[file.stem] = file
    for file in sorted(extra.glob("*/*.yaml")) if extra else ():
        if file.parent.name in choice_files:
            choice_files[file.parent.name].setdefault(file.stem, file)
    return choice_files


def groups(extra: Path | None = None) -> dict[str, list[str]]:
    """Every config group with its choices."""
    return {group: sorted(files) for group, files in choices(extra).items()}


def config_file(name: str, config_dir: Path | None) -> Path:
    """The file of `group/choice`, in the first folder that has it, as Hydra searches them."""
    return next(path for folder in _folders(config_dir) if (path := folder / f"{name}.yaml").is_file())


def _folders(config_dir: Path | None) -> list[Path]:
    return [conf_dir(), *([config_dir.resolve()] if config_dir else [])]


@dataclass
class Composed:
    """A run as Hydra composed it, before its classes are built."""

    node: dict[str, Any]
    values: list[Override]
    """The overrides that could be applied."""
    problems: list[Problem]
    files: tuple[tuple[Path, str], ...] = ()
    """The config files in the order in which they are merged (a later one wins), and the place of the run that each is
    put at: `reward.parts.gsm8k`; empty for the run itself."""
    derived: frozenset[str] = frozenset()
    """Settings that were not given, and that are derived from the others."""


def compose_chosen(arguments: Arguments, config_dir: Path | None) -> Composed:
    """The run that the arguments make. Choices whose files cannot be read are removed from them and reported."""
    try:
        return _compose_values(arguments.choices, arguments.values, config_dir)
    except Problems as error:
        first_problems = error.problems
    problems = list[Problem]()
    for key, choice in [*arguments.choices.items()]:
        try:
            compose_run(placeholders() | {key: choice}, [], config_dir)
        except Problems as error:
            problems += error.problems
            del arguments.choices[key]
            arguments.doubtful.add(key.partition(".")[0])
    try:
        composed = _compose_values(arguments.choices, arguments.values, config_dir)
    except Problems:
        return Composed({}, [], first_problems)
    return replace(composed, problems=[*(problems or first_problems), *composed.problems])


def placeholders() -> dict[str, Override]:
    return {group: parse(word) for group, word in PLACEHOLDERS.items()}


def compose_run(chosen: Mapping[str, Override], values: Sequence[Override], config_dir: Path | None) -> Composed:
    """The run of these choices and values. Raises `Problems` where a config file is at fault."""
    try:
        return _composed(chosen, values, config_dir)
    except _ERRORS as error:
        raise Problems(_file_problem(error)) from error


def _compose_values(chosen: Mapping[str, Override], values: list[Override], config_dir: Path | None) -> Composed:
    """As `compose_run`, but a value that Hydra cannot apply becomes a problem."""
    with suppress(Problems, *_ERRORS):  # a config file or some value is at fault
        return _composed(chosen, values, config_dir)
    base = compose_run(chosen, [], config_dir)
    problems, applied, queue = list[Problem](), list[Override](), [values]
    while queue:  # bisect: usually few values are at fault
        part = queue.pop()
        try:
            _composed(chosen, [*applied, *part], config_dir)
            applied += part
        except (Problems, *_ERRORS) as error:
            if len(part) > 1:
                half = len(part) // 2
                queue += [part[half:], part[:half]]
            else:
                problems += error.problems if isinstance(error, Problems) else [_value_problem(error, part[0])]
    return replace(_composed(chosen, applied, config_dir) if applied else base, problems=problems)


def _composed(chosen: Mapping[str, Override], values: Sequence[Override], config_dir: Path | None) -> Composed:
    """The run of these choices and values. Raises `Problems` and `_ERRORS`."""
    choices_of_run = defaults_choices(conf_dir() / "run.yaml").items()
    unset = [group for group, choice in choices_of_run if not choice and group not in (*chosen, "_self_")]
    implied = chosen_also(chosen, config_dir) if unset else set()
    excluded = [parse(f"~{group}") for group in sorted({*unset} - implied)]
    overrides = [*excluded, *chosen.values(), *values]
    config, composed = composition.compose(_folders(config_dir), "run", overrides, sources.check_file)
    with composition.LOCK:
        node = sources.resolved(config)
    files = tuple((config_file(name, config_dir), place) for name, place in composed)
    return Composed(node, [*values], [], files, defaults.derive(node))


def chosen_also(chosen: Mapping[str, Override], config_dir: Path | None) -> set[str]:
    """Groups for which the files of these choices choose, by entries with `@_global_`."""
    names = [f"{group}/{each.value()}" for group, each in chosen.items()]
    files = [path for name in names for folder in _folders(config_dir) if (path := folder / f"{name}.yaml").is_file()]
    return {entry.rpartition(".")[2] for path in files for entry in defaults_choices(path) if "@_global_." in entry}


def _value_problem(error: Exception, override: Override) -> Problem:
    """Why Hydra cannot apply this override."""
    key, value = override.key_or_group, text_of(override)
    if removes(override):
        return Problem(key, "is set by no file that could be overridden", "leave it out: the default holds")
    if isinstance(error, InterpolationKeyError):
        fix = "write the value itself, or use double quotes for a shell's variable"
        return Problem(key, f"{short_repr(value)} refers to what has no value", fix)
    if isinstance(error, ConfigTypeError | ConfigKeyError | ConfigCompositionException):
        return Problem(key, f"{short_repr(value)} does not fit there", "use a setting's full name and one value")
    return Problem(shortened(f"{key}={value}", 200), error_message(error), "write the value itself")


def _file_problem(error: Exception) -> Problem:
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return Problem(f"{error.problem_mark.name}:{error.problem_mark.line + 1}", str(error.problem), "", "bad-file")
    return Problem("--config-dir", error_message(error), "", "bad-file")
