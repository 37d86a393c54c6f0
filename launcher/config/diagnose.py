"""Everything that is wrong with the arguments for a run. Wrong settings are reset until a valid run is left, as one
mistake must not hide another. Loaded only where something is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from launcher.config.arguments import Arguments, allowed_to_add, parse, removes
from launcher.config.compose import Composed, choices, chosen_also, compose_run, placeholders
from launcher.config.defaults import derive
from launcher.config.explain import build, explain
from launcher.config.nodes import nested, walk
from launcher.config.suggestions import CHOICE_OF_SETTING, Suggester, Suggestion, suggest_choice
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

ROUNDS = 16
"""Rounds of resetting before giving up; each round resets at least one setting."""


@dataclass(frozen=True)
class IgnoredArguments:
    """What of the typed arguments is not in the run that is left."""

    names: frozenset[str]
    """Settings and groups whose value is not what was typed."""
    typed: Sequence[str]
    """Names of all settings that were typed."""
    known: Collection[str]
    """Settings that some choice has."""

    def explains(self, problem: Problem) -> bool:
        """Whether a problem may exist only because some value is not the one that was typed."""
        places = (problem.where, *problem.about)
        for name in self.names:
            is_below_name = any(f"{place}.".startswith(f"{name}.") for place in places)
            if "." in name or problem.where == name:
                if is_below_name:
                    return True
            elif problem.where.startswith(f"{name}."):  # the setting may belong to the choice that was meant
                is_unknown = problem.code == "unknown-setting"
                is_typed = any(_related(problem.where, key) for key in self.typed)
                if problem.where in self.known if is_unknown else not is_typed:
                    return True
            elif name in problem.about:
                return True
        return False


CHOICES = {
    "model": "use a hub's id (model=Qwen/Qwen3-0.6B), a folder (model=./folder), a run (model=NAME), model=tiny, or a "
    "name of `rlrun model list`",
    "data": "use files (data=rows.jsonl), a folder, a hub's id (data=openai/gsm8k), data=reverse, or a name of "
    "`rlrun config show data`",
}
"""Group -> what may be chosen, where that is more than the names of its files."""


def diagnose(
    arguments: Arguments, composed: Composed, problems: list[Problem], config_dir: Path | None
) -> tuple[RunSpec | None, list[Problem], IgnoredArguments]:
    """The run that is left (None if none is), all problems, and what it lacks. `problems` are those found so far."""
    files, values = choices(config_dir), arguments.texts
    missing = _missing_groups(arguments, composed, files, config_dir)
    choice_answers = [suggest_choice(group, choice, sorted(files[group])) for group, choice in arguments.no_choices]
    doubtful = {*arguments.doubtful, *(each.problem.where for each in choice_answers if not each.certain)}
    all_typed = values | {unknown.plain: unknown.value for unknown in arguments.unknown}
    suggester = Suggester(composed.node, files, missing, all_typed)
    answers = [*map(suggester.suggestion, arguments.unknown), *choice_answers]
    meant = _find_replacements(arguments, answers)
    reported = {*doubtful, *meant, *dict(arguments.no_choices)}
    not_chosen = [group for group in missing if group not in reported]
    absent = _find_missing(composed, {group: sorted(files[group]) for group in not_chosen}, doubtful)
    problems = [*(answer.problem for answer in answers), *problems, *absent]
    chosen = arguments.choices | _choices_for(missing, values) | {key: meant[key] for key in meant if key in files}
    full = _compose_with_replacements(composed, chosen, meant, config_dir)
    suggester = Suggester(full, files, not_chosen, all_typed)
    with suppress(ValidationError):  # `_repair` reports what `build` cannot convert
        build(full, values)
    typed = [*values, *(key for key in meant if key not in files)]
    doubtful.update(map(attrgetter("where"), absent))
    ignored = IgnoredArguments(frozenset(doubtful), typed, suggester.holders)
    run, run_problems, ignored = _repair(deepcopy(full), _composed(chosen, [], config_dir), ignored)
    problems += [each for problem in run_problems for each in suggester.named(problem, values)]
    return run, list(dict.fromkeys(problems)), ignored


def _missing_groups(
    arguments: Arguments, composed: Composed, files: Mapping[str, object], config_dir: Path | None
) -> list[str]:
    """Groups without a choice: none is typed, implied by another choice or a default; or it was removed by `~`."""
    typed = {key: choice for key, choice in arguments.choices.items() if not removes(choice)}
    chosen = typed.keys() | chosen_also(typed, config_dir)
    no_default = placeholders().keys()
    return [group for group in files if group not in (chosen if group in no_default else composed.node)]


def _find_missing(
    composed: Composed, not_chosen: Mapping[str, Sequence[str]], doubtful: Collection[str]
) -> list[Problem]:
    """A problem for each group without a choice and each value that config files leave open (`???`)."""
    unset = [place for place, value in walk(composed.node) if value == "???" and place not in doubtful]
    return [
        *(Problem(group, "not chosen", CHOICES.get(group) or f"it may be {', '.join(known)}", "unknown-choice")
          for group, known in not_chosen.items()),
        *(Problem(place, "has no value", f"use {place}=VALUE") for place in unset),
    ]  # fmt: skip


def _find_replacements(arguments: Arguments, answers: Sequence[Suggestion]) -> dict[str, Override]:
    """Setting or group -> the override that can replace a wrong argument."""
    replacements: dict[str, Override] = {}
    for answer in answers:
        with suppress(Problems):
            overrides = {(each := parse(word)).key_or_group: each for word in answer.overrides}
            if not overrides.keys() & arguments.choices.keys():
                replacements |= overrides
    return replacements


def _choices_for(missing: Sequence[str], typed: Mapping[str, str]) -> dict[str, Override]:
    """A choice for each group without one: implied by a typed setting of it, the default, or a placeholder."""
    defaults = defaults_choices(conf_dir() / "run.yaml")
    available = {group: parse(f"{group}={choice}") for group, choice in defaults.items() if choice} | placeholders()
    chosen = {group: available[group] for group in missing if group in available}
    for key, word in CHOICE_OF_SETTING.items():
        if key in typed and (group := key.partition(".")[0]) in chosen:
            chosen[group] = parse(word)
    return chosen


def _compose_with_replacements(
    composed: Composed, chosen: Mapping[str, Override], meant: Mapping[str, Override], config_dir: Path | None
) -> dict[str, Any]:
    """The run of these choices with all values, and with `meant` in place of what is wrong."""
    added = [allowed_to_add(each) for key, each in meant.items() if key not in chosen]
    full = _composed(chosen, [*added, *composed.values], config_dir) or composed.node
    full["code_dir"] = composed.node["code_dir"]
    return full


def _composed(chosen: Mapping[str, Override], values: Sequence[Override], config_dir: Path | None) -> dict[str, Any]:
    """The node of these choices and values; empty where a config file is at fault, which is among the problems."""
    with suppress(Problems):
        return compose_run(chosen, values, config_dir).node
    return {}


@cache
def _placeholders_node() -> dict[str, Any]:
    """A run of the placeholder choices; cached, as our own files do not change."""
    return compose_run(placeholders(), [], None).node


def _repair(
    node: dict[str, Any], plain: Mapping[str, Any], ignored: IgnoredArguments
) -> tuple[RunSpec | None, list[Problem], IgnoredArguments]:
    """The run that is left when all that is wrong is reset, or None; what was wrong; and `ignored` with what was reset.
    `plain` is the run without typed values."""
    problems, still_typed = list[Problem](), list(ignored.typed)  # names of typed values not reset so far
    named_before = set[str]()  # settings reset to a value that a problem named
    for _ in range(ROUNDS):
        try:
            return from_node(RunSpec, node), problems, ignored
        except ValidationError as error:
            found = explain(error, node)
        problems += [each for each in found if not ignored.explains(each) and each not in problems]
        at_fault, source = _find_resets(found, still_typed, plain, ignored.names, named_before)
        if not at_fault:
            break
        named_before |= at_fault if source is not plain else set()
        for key in at_fault:
            _reset(node, source, key)
        derive(node)  # what could not be derived from a wrong value
        still_typed = [name for name in still_typed if name not in at_fault]
        typed_below = {key for key in ignored.typed if any(key.startswith(f"{name}.") for name in at_fault)}
        ignored = replace(ignored, names=ignored.names | at_fault | typed_below)
    return None, problems, ignored


def _find_resets(
    found: Sequence[Problem], typed: Sequence[str], plain: Mapping[str, Any], gone: Set[str], named_before: Set[str]
) -> tuple[set[str], Mapping[str, Any]]:
    """What to reset, and the node with the new values: typed settings that the problems are about to those of `plain`;
    else settings to values that the problems name; else groups but those `gone` to placeholders; else all typed."""
    groups = {problem.where.partition(".")[0] for problem in found}
    named = {each.where: each.value for each in found if each.value is not None and each.where not in named_before}
    if typed_at_fault := {key for problem in found for key in _settings_of(problem, typed)}:
        return typed_at_fault, plain
    if named:
        return {*named}, nested(named)
    if groups_at_fault := groups & _placeholders_node().keys() - gone:
        return groups_at_fault, _placeholders_node()
    return {key for key in typed if key.partition(".")[0] in groups} or {*typed}, plain


def _reset(node: dict[str, Any], source: Mapping[str, Any], key: str) -> None:
    """Set the setting or group `key` to its value in `source`; remove it where `source` has none."""
    first, _, rest = key.partition(".")
    if rest and isinstance(node.get(first), dict) and isinstance(source.get(first), Mapping):
        _reset(node[first], source[first], rest)
    elif first in source:
        node[first] = deepcopy(source[first])
    else:
        node.pop(first, None)


def _settings_of(problem: Problem, typed: Sequence[str]) -> list[str]:
    is_group = "." not in problem.where  # which of its settings is at fault is not known
    related = [key for key in typed if _related(problem.where, key) and not (is_group and key != problem.where)]
    return related or [key for key in typed if key in problem.about]


def _related(one: str, other: str) -> bool:
    """Whether one is the other, or stands above it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
