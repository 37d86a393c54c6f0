"""Everything that is wrong with the arguments for a run: what is known to be wrong is reset, until a run is left, as
one mistake must not hide another. Loaded only where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from launcher.config.arguments import Arguments, allowed_to_add, parse, removes
from launcher.config.compose import Composed, choices, chosen_also, compose_run, placeholders
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


CHOICES = {
    "model": "use a hub's id (model=Qwen/Qwen3-0.6B), a folder (model=./folder), a run (model=NAME), model=tiny, or a "
    "name of `rlrun model list`",
    "data": "use files (data=rows.jsonl), a folder, a hub's id (data=openai/gsm8k), data=reverse, or a name of "
    "`rlrun config show data`",
}
"""What may be chosen where that is more than the names of a group."""


def diagnose(
    arguments: Arguments, composed: Composed, problems: list[Problem], config_dir: Path | None
) -> tuple[RunSpec | None, list[Problem], IgnoredArguments]:
    """The run that is left, all problems, and what the run lacks. `problems` are those found so far."""
    files, values = choices(config_dir), arguments.texts
    missing = _missing_groups(arguments, composed, files, config_dir)
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
    chosen = arguments.choices | _choices_for(missing, values) | {key: meant[key] for key in meant if key in files}
    full, plain = _with_choices(arguments, composed, chosen, meant, config_dir)
    suggester = Suggester(full, files, not_chosen, every)
    with suppress(ValidationError):  # what is not converted is named below
        build(full, values)
    typed = [*values, *(key for key in meant if key not in files)]
    ignored = IgnoredArguments(arguments.doubtful, typed, suggester.holders)
    run, wrong = _repair(deepcopy(full), plain, ignored)
    problems += [each for problem in wrong for each in suggester.named(problem, values)]
    return run, list(dict.fromkeys(problems)), ignored


def _missing_groups(
    arguments: Arguments, composed: Composed, files: Mapping[str, object], config_dir: Path | None
) -> list[str]:
    """Groups without a choice: none is typed, nor made by another, where there is no default; or it is taken away."""
    typed = {key: choice for key, choice in arguments.choices.items() if not removes(choice)}
    chosen = typed.keys() | chosen_also(typed, config_dir)
    no_default = placeholders().keys()
    return [group for group in files if group not in (chosen if group in no_default else composed.node)]


def _not_given(arguments: Arguments, composed: Composed, not_chosen: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Problems with what has to be given: choices of groups, and values that config files leave open."""
    unset = [place for place, value in walk(composed.node) if value == "???" and place not in arguments.doubtful]
    arguments.doubtful.update(unset, not_chosen)
    return [
        *(Problem(group, "not chosen", CHOICES.get(group) or f"it may be {', '.join(known)}", "unknown-choice")
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


def _choices_for(missing: Sequence[str], typed: Mapping[str, str]) -> dict[str, Override]:
    """A choice for each group without one: of a setting of it that is typed, the default, or one that needs nothing."""
    defaults = defaults_choices(conf_dir() / "run.yaml")
    known = {group: parse(f"{group}={choice}") for group, choice in defaults.items() if choice} | placeholders()
    found = {group: known[group] for group in missing if group in known}
    for key, word in CHOICE_OF_SETTING.items():
        if key in typed and (group := key.partition(".")[0]) in found:
            found[group] = parse(word)
    return found


def _with_choices(
    arguments: Arguments, composed: Composed, chosen: Mapping[str, Override], meant: Mapping[str, Override],
    config_dir: Path | None,
) -> tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]:  # fmt: skip
    """The run of these choices with all values, and what composes it without values when it is needed."""
    added = [allowed_to_add(each) for key, each in meant.items() if key not in chosen]
    full = composed.node
    if added or chosen != arguments.choices:
        found = _composed(chosen, [*added, *composed.values], config_dir)
        full = found | {"code_dir": full["code_dir"]} if found else full
    return full, cache(partial(_composed, chosen, [], config_dir))


def _composed(chosen: Mapping[str, Override], values: Sequence[Override], config_dir: Path | None) -> dict[str, Any]:
    """The node of these choices and values; empty where a config file is at fault, which is among the problems."""
    with suppress(Problems):
        return compose_run(chosen, values, config_dir).node
    return {}


@cache
def _placeholders_node() -> dict[str, Any]:
    """A run of choices that need no settings; our own files stay as they are."""
    return compose_run(placeholders(), [], None).node


def _repair(
    node: dict[str, Any], plain: Callable[[], Mapping[str, Any]], ignored: IgnoredArguments
) -> tuple[RunSpec | None, list[Problem]]:
    """The run that is left when all that is wrong is reset, and what was wrong; no run where nothing helps. `plain`
    composes the run without settings. Fills the names of `ignored`."""
    fixed = set[str]()
    problems, left = list[Problem](), list(ignored.typed)  # `left` are still as they were typed
    for _ in range(ROUNDS):
        found = _problems(node)
        if isinstance(found, RunSpec):
            return found, problems
        problems += [each for each in found if not ignored.explains(each) and each not in problems]
        at_fault, source = _to_reset(found, left, ignored.names, fixed)
        if not at_fault:
            break
        fixed |= at_fault if source is not None else set()
        for key in at_fault:
            _reset(node, plain() if source is None else source, key)
        left = [name for name in left if name not in at_fault]
        below = {key for key in ignored.typed if any(key.startswith(f"{name}.") for name in at_fault)}
        ignored.names |= at_fault | below
    return None, problems


def _to_reset(
    found: Sequence[Problem], typed: Sequence[str], names: set[str], fixed: set[str]
) -> tuple[set[str], Mapping[str, Any] | None]:
    """The names to reset, and the node with their values, None for what the choices alone give: typed settings that the
    problems are about; else values that the problems name, whole groups, or all that was typed. `names` are reset
    already, `fixed` to values that problems named."""
    groups = {problem.where.partition(".")[0] for problem in found}
    known = {each.where: each.value for each in found if each.value is not None and each.where not in fixed}
    if at_fault := {key for problem in found for key in _settings_of(problem, typed)}:
        return at_fault, None
    if known:
        return set(known), nested(known)
    if at_fault := groups & _placeholders_node().keys() - names:
        return at_fault, _placeholders_node()
    return {key for key in typed if key.partition(".")[0] in groups} or set(typed), None


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
