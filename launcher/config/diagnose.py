"""Everything that is wrong with the arguments for a run. Loaded only where something is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.config.arguments import Arguments, key_of, parse, spelling
from launcher.config.compose import PLACEHOLDERS, Composed, choices, compose_each, groups
from launcher.config.explain import build
from launcher.config.nodes import walk
from launcher.config.repair import Repair
from launcher.config.suggestions import CHOICE_OF_SETTING, Suggester, Suggestion, suggest_choice
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.spec.run import RunSpec


def diagnose(
    arguments: Arguments, composed: Composed, problems: list[Problem], config_dir: Path | None
) -> tuple[RunSpec | None, list[Problem], Repair]:
    """All of it: what is known to be wrong is left out, until a run is left. `problems` are those found so far."""
    known, files = groups(config_dir), choices(config_dir)
    missing_groups = [
        group for group in known if group not in {**composed.node, **PLACEHOLDERS} or _lacks_choice(group, arguments)
    ]
    chosen = [suggest_choice(group, choice, known[group]) for group, choice in arguments.no_choices]
    arguments.doubtful.update(answer.problem.where for answer in chosen if not answer.certain)
    values = arguments.texts
    every = values | {one.plain: one.value for one in arguments.unknown}
    answers = [*Suggester(composed.node, files, arguments.unknown, missing_groups, every).suggestions(), *chosen]
    problems = [*(answer.problem for answer in answers), *problems]
    meant = _placeholder_arguments(arguments, answers)
    named = {*arguments.doubtful, *meant, *(group for group, _ in arguments.no_choices)}
    problems += [
        Problem(group, "not chosen", f"it may be {', '.join(known[group])}", "unknown-choice")
        for group in missing_groups
        if group not in named
    ]
    missing = [place for place, value in walk(composed.node) if value == "???" and place not in arguments.doubtful]
    problems += [Problem(place, "has no value", f"use {place}=VALUE") for place in missing]
    arguments.doubtful.update(missing, [group for group in missing_groups if group not in named])
    try:
        full, plain, placeholders = _with_placeholders(arguments, composed, meant, missing_groups, config_dir)
    except Problems:  # a config file is at fault, which is among the problems
        full, plain, placeholders = composed.node, {}, {}
    suggester = Suggester(
        full, files, missing_groups=[group for group in missing_groups if group not in named], typed=every
    )
    typed = [*values, *(key for key in meant if key not in known)]
    with suppress(ValidationError):  # what is not converted is named below
        build(full, values)
    repair = Repair(
        deepcopy(full), plain, placeholders, typed, arguments.doubtful, lambda name: name in suggester.holders
    )
    run = repair.run()
    of_answers = {key: answer for answer in answers for key in map(key_of, answer.overrides) if key not in values}
    for problem in repair.problems:
        answer = of_answers.get(problem.where)
        if answer and (first := answer.problem) in problems:  # one line for a wrong value under a wrong name
            fix = _with_setting(problem)
            name = "" if "." in problem.where and problem.where in fix else f" ({' '.join(answer.overrides)})"
            problems[problems.index(first)] = replace(first, got=f"{first.got}{name}, and {problem.got}", fix=fix)
        else:
            problems += suggester.named(problem, values)
    return run, list(dict.fromkeys(problems)), repair


def _with_setting(problem: Problem) -> str:
    """The fix of a wrong value, with the setting that it is of: it was typed by another name."""
    value = problem.fix.removeprefix("use ")
    if re.fullmatch(r"[\w.+-]+", value) and "." not in value.strip("0123456789-+"):
        return f"use {problem.where}={value}"
    return (
        f"use {problem.where} with {value}"
        if re.match(r"an? ([a-z]+ )?(number|list)|at |true or|'|null|text", value)
        else problem.fix
    )


def _lacks_choice(group: str, arguments: Arguments) -> bool:
    return group in PLACEHOLDERS and (group not in arguments.choices or arguments.choices[group].startswith("~"))


def _placeholder_arguments(arguments: Arguments, answers: Sequence[Suggestion]) -> dict[str, str]:
    """What can replace the wrong arguments: choices of groups that have none, and values."""
    found: dict[str, str] = {}
    for answer in answers:
        try:
            keys = [parse(word).key_or_group for word in answer.overrides]
        except Problems:
            continue
        if all(key not in arguments.choices for key in keys):
            found |= dict(zip(keys, answer.overrides, strict=True))
    return found


def _with_placeholders(
    arguments: Arguments,
    composed: Composed,
    meant: dict[str, str],
    missing_groups: Sequence[str],
    config_dir: Path | None,
) -> list[dict[str, Any]]:
    """The run with something for all that is missing; the same without settings; a run of choices that need none.
    Raises `Problems`."""
    known, keys = groups(config_dir), [key_of(word) for word in arguments.values]
    defaults = {group: f"{group}={choice}" for group, choice in defaults_choices(conf_dir() / "run.yaml").items()}
    needed = {group: word for group, word in (defaults | PLACEHOLDERS).items() if group in missing_groups}
    for key, word in CHOICE_OF_SETTING.items():
        if key in keys and (group := key.partition(".")[0]) in needed:
            needed[group] = word
    choices = arguments.choices | needed | {key: word for key, word in meant.items() if key in known}
    values = [spelling(parse(word), word, known) for key, word in meant.items() if key not in known]
    found = compose_each(
        (choices, config_dir, [*values, *composed.overrides]), (choices, config_dir, []), (PLACEHOLDERS, None, [])
    )
    for node in found:
        node["code_dir"] = composed.node["code_dir"]
    return found
