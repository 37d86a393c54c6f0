"""Everything that is wrong with the arguments for a run: what is known to be wrong is reset, until a run is left, as
one mistake must not hide another. Loaded only where something is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from launcher.config.arguments import Arguments, allowed_to_add, parse, removes
from launcher.config.compose import Composed, choices, compose_run, placeholders
from launcher.config.explain import build, explain
from launcher.config.nodes import nested, walk
from launcher.config.suggestions import CHOICE_OF_SETTING, Suggester, Suggestion, suggest_choice
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

ROUNDS = 16
"""Resets before it is given up: each resets at least one of the settings that people get wrong."""


@dataclass
class IgnoredArguments:
    """What a run lacks of what was typed."""

    names: set[str]
    """Settings and groups whose value is not what was typed."""
    typed: Sequence[str]
    """Names of all settings that were typed."""
    known: Collection[str]
    """Settings that some choice has."""

    def explains(self, problem: Problem) -> bool:
        """Whether a problem may be there only because something is not what was typed."""
        places = (problem.where, *problem.about)
        for name in self.names:
            of_name = any(f"{place}.".startswith(f"{name}.") for place in places)
            if "." in name or problem.where == name:
                if of_name:
                    return True
            elif problem.where.startswith(f"{name}."):  # of another choice than was meant
                unknown = problem.code == "unknown-setting"
                of_typed = any(_related(problem.where, key) for key in self.typed)
                if problem.where in self.known if unknown else not of_typed:
                    return True
            elif name in problem.about:
                return True
        return False


def diagnose(
    arguments: Arguments, composed: Composed, problems: list[Problem], config_dir: Path | None
) -> tuple[RunSpec | None, list[Problem], IgnoredArguments]:
    """The run that is left, all problems, and what the run lacks. `problems` are those found so far."""
    files, values = choices(config_dir), arguments.texts
    missing = _missing_groups(arguments, composed, files)
    of_choices = [suggest_choice(group, choice, sorted(files[group])) for group, choice in arguments.no_choices]
    arguments.doubtful.update(answer.problem.where for answer in of_choices if not answer.certain)
    every = values | {unknown.plain: unknown.value for unknown in arguments.unknown}
    suggester = Suggester(composed.node, files, missing, every)
    answers = [*map(suggester.suggestion, arguments.unknown), *of_choices]
    meant = _meant(arguments, answers)
    named = {*arguments.doubtful, *meant, *dict(arguments.no_choices)}
    not_chosen = [group for group in missing if group not in named]
    problems = [*(answer.problem for answer in answers), *problems]
    problems += _not_given(arguments, composed, {group: sorted(files[group]) for group in not_chosen})
    try:
        full, plain, replacements = _with_placeholders(arguments, composed, meant, missing, config_dir)
    except Problems:  # a config file is at fault, which is among the problems
        full, plain, replacements = composed.node, {}, {}
    suggester = Suggester(full, files, not_chosen, every)
    with suppress(ValidationError):  # what is not converted is named below
        build(full, values)
    typed = [*values, *(key for key in meant if key not in files)]
    ignored = IgnoredArguments(arguments.doubtful, typed, suggester.holders)
    run, found = _repair(deepcopy(full), plain, replacements, ignored)
    problems += [each for problem in found for each in suggester.named(problem, values)]
    return run, list(dict.fromkeys(problems)), ignored


def _missing_groups(arguments: Arguments, composed: Composed, files: Mapping[str, object]) -> list[str]:
    """Groups without a choice: none is typed where there is no default, or the default is taken away."""
    chosen = {key for key, choice in arguments.choices.items() if not removes(choice)}
    no_default = placeholders().keys()
    return [group for group in files if group not in (chosen if group in no_default else composed.node)]


def _not_given(arguments: Arguments, composed: Composed, not_chosen: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Problems with what has to be given: choices of groups, and values that config files leave open."""
    unset = [place for place, value in walk(composed.node) if value == "???" and place not in arguments.doubtful]
    arguments.doubtful.update(unset, not_chosen)
    return [
        *(Problem(group, "not chosen", f"it may be {', '.join(known)}", "unknown-choice")
          for group, known in not_chosen.items()),
        *(Problem(place, "has no value", f"use {place}=VALUE") for place in unset),
    ]  # fmt: skip


def _meant(arguments: Arguments, answers: Sequence[Suggestion]) -> dict[str, Override]:
    """What can replace the wrong arguments: choices of groups that have none, and values."""
    found: dict[str, Override] = {}
    for answer in answers:
        with suppress(Problems):
            overrides = {(each := parse(word)).key_or_group: each for word in answer.overrides}
            if not overrides.keys() & arguments.choices.keys():
                found |= overrides
    return found


def _with_placeholders(
    arguments: Arguments, composed: Composed, meant: Mapping[str, Override], missing: Sequence[str],
    config_dir: Path | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The run with something for all that is missing; the same without settings; a run of choices that need none.
    Raises `Problems`."""
    groups, typed = choices(config_dir), arguments.texts
    defaults = {group: parse(f"{group}={choice}") for group, choice in defaults_choices(conf_dir() / "run.yaml").items()
                if choice}  # fmt: skip
    needed = {group: choice for group, choice in (defaults | placeholders()).items() if group in missing}
    for key, word in CHOICE_OF_SETTING.items():
        if key in typed and (group := key.partition(".")[0]) in needed:
            needed[group] = parse(word)
    chosen = arguments.choices | needed | {key: each for key, each in meant.items() if key in groups}
    values = [allowed_to_add(each) for key, each in meant.items() if key not in groups]
    found = [
        compose_run(chosen, [*values, *composed.values], config_dir).node,
        compose_run(chosen, [], config_dir).node,
        compose_run(placeholders(), [], None).node,
    ]
    for node in found:
        node["code_dir"] = composed.node.get("code_dir")
    return found


def _repair(
    node: dict[str, Any], plain: Mapping[str, Any], placeholders: Mapping[str, Any], ignored: IgnoredArguments
) -> tuple[RunSpec | None, list[Problem]]:
    """The run that is left when all that is wrong is reset, and what was wrong; no run where nothing helps. Fills the
    names of `ignored`."""
    fixed = set[str]()
    problems, left = list[Problem](), list(ignored.typed)  # `left` are still as they were typed
    for _ in range(ROUNDS):
        found = _problems(node)
        if isinstance(found, RunSpec):
            return found, problems
        problems += [each for each in found if not ignored.explains(each) and each not in problems]
        at_fault, source = _to_reset(found, left, ignored.names, fixed, plain, placeholders)
        fixed |= at_fault if source is not plain else set()
        if not at_fault:
            break
        for key in at_fault:
            _reset(node, source, key)
        left = [name for name in left if name not in at_fault]
        below = {key for key in ignored.typed if any(key.startswith(f"{name}.") for name in at_fault)}
        ignored.names |= at_fault | below
    return None, problems


def _to_reset(
    found: Sequence[Problem], typed: Sequence[str], names: set[str], fixed: set[str], plain: Mapping[str, Any],
    placeholders: Mapping[str, Any],
) -> tuple[set[str], Mapping[str, Any]]:  # fmt: skip
    """The names to reset, and the node with their values: typed settings that the problems are about; else values that
    the problems name, whole groups, or all that was typed. `names` are reset already, `fixed` to values that problems
    named."""
    groups = {problem.where.partition(".")[0] for problem in found}
    known = {each.where: each.value for each in found if each.value is not None and each.where not in fixed}
    ways: list[tuple[set[str], Mapping[str, Any]]] = [
        ({key for problem in found for key in _settings_of(problem, typed)}, plain),
        (set(known), nested(known)),
        (groups & placeholders.keys() - names, placeholders),
        ({key for key in typed if key.partition(".")[0] in groups}, plain),
    ]
    return next((way for way in ways if way[0]), (set(typed), plain))


def _reset(node: dict[str, Any], source: Mapping[str, Any], key: str) -> None:
    """Give the setting or group `key` the value that it has in `source`, or none."""
    target: dict[str, Any] = node
    value: Any = source
    *above, last = key.split(".")
    for part in above:
        if not isinstance(target.get(part), dict):
            return
        if not isinstance(value, Mapping) or not isinstance(value.get(part), Mapping):
            last = part  # the source has one value there, or none
            break
        target, value = target[part], value[part]
    if isinstance(value, Mapping) and last in value:
        target[last] = deepcopy(value[last])
    else:
        target.pop(last, None)


def _problems(node: Mapping[str, Any]) -> RunSpec | list[Problem]:
    try:
        return from_node(RunSpec, node)
    except ValidationError as error:
        return explain(error, node)


def _settings_of(problem: Problem, typed: Sequence[str]) -> list[str]:
    of_group = "." not in problem.where  # of its settings only one may be at fault
    own = [key for key in typed if _related(problem.where, key) and not (of_group and key != problem.where)]
    return own or [key for key in typed if key in problem.about]


def _related(one: str, other: str) -> bool:
    """Whether one is the other, or stands above it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
