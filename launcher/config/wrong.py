"""Everything that is wrong with the arguments for a run. Loaded only where something is."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from launcher.config.answers import Guide, Suggestion, choice_answer
from launcher.config.nodes import walk
from launcher.config.repair import Repair
from launcher.config.resolve import (
    STAND_INS,
    Composed,
    Examined,
    Words,
    compose_each,
    conf_dir,
    config_file,
    groups,
    key_of,
    parse,
    spelling,
)
from launcher.config.yaml_lines import defaults_choices
from launcher.core.problems import Problem, Problems

CHOICE_OF_SETTING = {
    "model.path": "model=hf", "data.repo": "data=hub", "data.train_files": "data=files", "data.val_files": "data=files",
}  # fmt: skip
"""Settings that tell which choice was meant where there is none."""


def examine(read: Words, composed: Composed, problems: list[Problem], config_dir: Path | None) -> Examined:
    """All of it: what is known to be wrong is left out, until a run is left. `problems` are those found so far."""
    known = groups(config_dir)
    files = {group: {each: config_file(f"{group}/{each}", config_dir) for each in of} for group, of in known.items()}
    unchosen = [group for group in known if group not in {**composed.node, **STAND_INS} or _lacks_choice(group, read)]
    chosen = [choice_answer(group, choice, known[group]) for group, choice in read.no_choices]
    read.doubtful.update(answer.problem.where for answer in chosen if not answer.certain)
    values = {key_of(word): word.partition("=")[2] for word in read.values}
    every = values | {one.plain: one.value for one in read.unknown}
    answers = [*Guide(composed.node, files, read.unknown, unchosen, every).answers(), *chosen]
    problems = [*(answer.problem for answer in answers), *problems]
    meant = _stand_in_words(read, answers)
    named = {*read.doubtful, *meant, *(group for group, _ in read.no_choices)}
    problems += [
        Problem(group, "not chosen", f"it may be {', '.join(known[group])}", "unknown-choice")
        for group in unchosen
        if group not in named
    ]
    missing = [place for place, value in walk(composed.node) if value == "???"]
    problems += [Problem(place, "has no value", f"use {place}=VALUE") for place in missing]
    read.doubtful.update(missing, [group for group in unchosen if group not in named])
    try:
        full, plain, stand_ins = _stand_in(read, composed, meant, unchosen, config_dir)
    except Problems:  # a config file is at fault, which is among the problems
        full, plain, stand_ins = composed.node, {}, {}
    guide = Guide(full, files, unchosen=[group for group in unchosen if group not in named], typed=every)
    typed = [*values, *(key for key in meant if key not in known)]
    repair = Repair(deepcopy(full), plain, stand_ins, typed, read.doubtful, lambda name: name in guide.holders)
    run = repair.run()
    problems += [each for problem in repair.problems for each in guide.named(problem, values)]
    return Examined(run, list(dict.fromkeys(problems)), repair)


def _lacks_choice(group: str, read: Words) -> bool:
    return group in STAND_INS and (group not in read.choices or read.choices[group].startswith("~"))


def _stand_in_words(read: Words, answers: Sequence[Suggestion]) -> dict[str, str]:
    """What can stand for the wrong arguments: choices of groups that have none, and values."""
    found: dict[str, str] = {}
    for answer in answers:
        try:
            keys = [parse(word).key_or_group for word in answer.words]
        except Problems:
            continue
        if all(key not in read.choices for key in keys):
            found |= dict(zip(keys, answer.words, strict=True))
    return found


def _stand_in(
    read: Words, composed: Composed, meant: dict[str, str], unchosen: Sequence[str], config_dir: Path | None
) -> list[dict[str, Any]]:
    """The run with something for all that is missing; the same without settings; a run of choices that need none.
    Raises `Problems`."""
    known, keys = groups(config_dir), [key_of(word) for word in read.values]
    defaults = {group: f"{group}={choice}" for group, choice in defaults_choices(conf_dir() / "run.yaml").items()}
    needed = {group: word for group, word in (defaults | STAND_INS).items() if group in unchosen}
    for key, word in CHOICE_OF_SETTING.items():
        if key in keys and (group := key.partition(".")[0]) in needed:
            needed[group] = word
    choices = read.choices | needed | {key: word for key, word in meant.items() if key in known}
    values = [spelling(parse(word), word, known) for key, word in meant.items() if key not in known]
    found = compose_each(
        (choices, config_dir, [*values, *composed.words]), (choices, config_dir, []), (STAND_INS, None, [])
    )
    for node in found:
        node["code_dir"] = composed.node["code_dir"]
    return found
