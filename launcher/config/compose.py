"""Choices and settings -> one node, by Hydra. With `sources` and `resolve` the only file that imports its configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf.errors import ConfigKeyError, ConfigTypeError, InterpolationKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from launcher.config import defaults, sources
from launcher.config.arguments import Arguments
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened

PLACEHOLDERS = {"algorithm": "algorithm=sft", "model": "model=tiny", "data": "data=reverse"}
"""Choices that need no settings, for groups without a default: what else is wrong is looked for with them."""
_FAULTS = (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError)  # of composing


def choices(extra: Path | None = None) -> dict[str, dict[str, Path]]:
    """Every config group with the files of its choices, of each the first folder that has it, as Hydra searches them.
    A folder of `extra` that is no group of ours is something else's."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(conf_dir().glob("*/*.yaml")):
        found.setdefault(file.parent.name, {})[file.stem] = file
    for file in sorted(extra.glob("*/*.yaml")) if extra else ():
        if file.parent.name in found:
            found[file.parent.name].setdefault(file.stem, file)
    return found


def groups(extra: Path | None = None) -> dict[str, list[str]]:
    """Every config group with its choices."""
    return {group: sorted(files) for group, files in choices(extra).items()}


def config_file(name: str, config_dir: Path | None) -> Path:
    """The file of `group/choice`, in the first folder that has it, as Hydra searches them."""
    folders = [conf_dir(), *([config_dir] if config_dir else [])]
    return next(path for folder in folders if (path := folder / f"{name}.yaml").is_file())


def base_overrides(chosen: Mapping[str, str], config_dir: Path | None) -> list[str]:
    """The overrides that choose, as Hydra takes them."""
    unset = sorted(group for group, choice in defaults_choices(conf_dir() / "run.yaml").items() if not choice)
    excluded = [group for group in unset if group not in (*chosen, "_self_")]
    search = []
    if config_dir:
        search = [f"hydra.searchpath=[{quoted(f'{sources.SCHEME}://{config_dir.resolve()}')}]"]
    return [*search, *(f"~{group}" for group in excluded), *chosen.values()]


@dataclass
class Composed:
    """A run as far as Hydra makes it."""

    node: dict[str, Any]
    overrides: list[str]
    """Those that could be applied."""
    problems: list[Problem]
    derived: frozenset[str] = frozenset()
    """Settings that nobody gave, and that are fitted to the others."""


def compose_chosen(arguments: Arguments, config_dir: Path | None) -> Composed:
    """The run that the arguments make. Choices whose files cannot be read are taken out of them, and named."""
    try:
        return _compose(base_overrides(arguments.choices, config_dir), arguments.values)
    except Problems as error:
        found = error.problems
    problems, at_fault = list[Problem](), {problem.where.partition(".")[0] for problem in found}
    if not at_fault <= {*arguments.choices}:
        at_fault.clear()
        for key, word in arguments.choices.items():
            try:
                _compose(base_overrides(PLACEHOLDERS | {key: word}, config_dir), [])
            except Problems as error:
                problems += error.problems
                at_fault.add(key)
    for key in at_fault:
        del arguments.choices[key]
        arguments.doubtful.add(key.partition(".")[0])
    try:
        composed = _compose(base_overrides(arguments.choices, config_dir), arguments.values)
    except Problems:
        return Composed({}, [], found)
    return replace(composed, problems=[*(problems or found), *composed.problems])


def _compose(base: list[str], overrides: list[str]) -> Composed:
    """The run that the arguments make, and a problem for each that Hydra cannot apply. Raises `Problems` where it is a
    config file that is at fault."""
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        if overrides:
            with suppress(Problems, *_FAULTS):  # a config file or some word is at fault
                return _with_derived(_composed([*base, *overrides]), overrides, [])
        try:
            node = _composed(base)
        except _FAULTS as error:
            raise Problems(_config_fault(error)) from error
        problems, good = list[Problem](), list[str]()
        waiting = [overrides] if overrides else []
        while waiting:  # halved until a word stands alone: few are at fault
            some = waiting.pop()
            if not (faults := _faults([*base, *good, *some], some[-1])):
                good += some
            elif len(some) == 1:
                problems += faults
            else:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
        return _with_derived(_composed([*base, *good]) if good else node, good, problems)


def _faults(overrides: list[str], word: str) -> list[Problem]:
    """Why Hydra cannot apply `word`, the last of these."""
    try:
        _composed(overrides)
    except Problems as found:
        return found.problems
    except _FAULTS as error:
        return [_fault(error, word)]
    return []


def _fault(error: Exception, word: str) -> Problem:
    key, _, value = word.lstrip("+~").partition("=")
    if word.startswith("~"):
        return Problem(key, "is set by no file that could be overridden", "leave it out: the default holds")
    if isinstance(error, InterpolationKeyError):
        return Problem(key, f"{short_repr(value)} refers to what has no value", "write the value itself")
    if isinstance(error, ConfigTypeError | ConfigKeyError | ConfigCompositionException):
        return Problem(key, f"{short_repr(value)} does not fit there", "use a setting's full name and one value")
    return Problem(shortened(word.lstrip("+"), 200), error_message(error), "write the value itself")


def compose_each(*choices: tuple[Mapping[str, str], Path | None, Sequence[str]]) -> list[dict[str, Any]]:
    """The run of each choices with the settings, a folder of config groups beside ours. Raises `Problems`."""
    with initialize_config_dir(str(conf_dir()), version_base=None):
        try:
            found = [
                _composed([*base_overrides(chosen, config_dir), *overrides])
                for chosen, config_dir, overrides in choices
            ]
        except _FAULTS as error:
            raise Problems(_config_fault(error)) from error
    for node in found:
        defaults.derive(node)
    return found


def _composed(overrides: list[str]) -> dict[str, Any]:
    return sources.resolved(compose("run", overrides))


def _with_derived(node: dict[str, Any], overrides: list[str], problems: list[Problem]) -> Composed:
    return Composed(node, overrides, problems, defaults.derive(node))


def _config_fault(error: Exception) -> Problem:
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return Problem(f"{error.problem_mark.name}:{error.problem_mark.line + 1}", str(error.problem), "", "bad-file")
    return Problem("--config-dir", error_message(error), "", "bad-file")
