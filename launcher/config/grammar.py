"""Sweeps and single values in Hydra's grammar of overrides, read without a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import DecimalException
from itertools import islice, product
from math import prod
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType, Sweep, Transformer
from hydra.errors import HydraException

from launcher.config.arguments import names_target, parse
from launcher.config.nodes import TARGET
from launcher.core.problems import Problem, Problems, short_repr

LIMIT = 1_000
"""Most points of a sweep: each is a run, and all are checked before the first starts."""
ONE_FOR_ALL = ("trainer.experiment_name", "trainer.project_name", "trainer.run_root")


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    overrides: tuple[str, ...]
    """All overrides, with one value each."""
    differs: Mapping[str, str]
    """Swept setting or group -> its value at this point."""

    @property
    def label(self) -> str:
        """The swept settings as they would be typed; empty where nothing is swept."""
        return " ".join(f"{key}={value}" for key, value in self.differs.items())


def points(overrides: Sequence[str]) -> list[Point]:
    """Every combination of the overrides' values; the last word's vary fastest.

    A word that cannot be read stays as it is: resolving says what is wrong with it. Raises `Problems`.
    """
    parsed = [_parse(word) for word in overrides]
    last_place = {override.key_or_group: place for place, override in enumerate(parsed) if override}
    swept, choices, problems = dict[int, str](), list[list[str]](), list[Problem]()
    for place, (word, override) in enumerate(zip(overrides, parsed, strict=True)):
        choices.append([word])
        if override is None or not override.is_sweep_override():
            continue
        swept[place] = key = override.get_key_element()
        try:
            choices[-1] = _values(override)
        except Problems as invalid:
            problems += invalid.problems
        if last_place[override.key_or_group] != place:  # of two values the last one counts
            got = "is swept, and given again after that"
            problems.append(Problem(override.key_or_group, got, "give it once", "conflicting-settings"))
        if key.lstrip("+") in ONE_FOR_ALL:
            problems.append(Problem(key.lstrip("+"), "its runs stand side by side", "use one for all"))
    if (count := prod(map(len, choices))) > LIMIT:
        fix = "use fewer values, or several sweeps"
        problems.append(Problem("-m", f"{count:,} points are more than {LIMIT:,}", fix))
    if problems:
        raise Problems(list(dict.fromkeys(problems)))
    return [
        Point(words, {key.lstrip("+"): words[place].removeprefix(f"{key}=") for place, key in swept.items()})
        for words in product(*choices)
    ]


def _parse(word: str) -> Override | None:
    with suppress(Problems):
        return parse(word)
    return None


def _values(override: Override) -> list[str]:
    """The overrides that a sweep stands for, one value each. Raises `Problems`."""
    key, sweep, line = override.key_or_group, override.value(), short_repr(override.input_line)
    if not isinstance(sweep, Sweep) or override.is_interval_sweep():
        raise Problems(Problem(key, f"{line} is no list of values", "use a,b or range(a,b,step)"))
    if sweep.shuffle:
        raise Problems(Problem(key, f"{line} has another order each time", "leave shuffle out"))
    try:
        values = list(map(str, islice(override.sweep_iterator(Transformer.str), LIMIT + 1)))
    except (HydraException, ValueError, DecimalException) as error:  # a step of 0, or a bound that is not a number
        raise Problems(Problem(line, "is not a range", "use range(first,end,step)")) from error
    if not values:
        raise Problems(Problem(key, f"{line} has no values", "use a range that holds a value"))
    if len(values) > LIMIT:
        raise Problems(Problem(key, f"{line} is more than {LIMIT:,} values", "use fewer"))
    if duplicates := [value for value in dict.fromkeys(values) if values.count(value) > 1]:
        raise Problems(Problem(key, f"{line} has {', '.join(duplicates)} twice", "give it once"))
    return [f"{override.get_key_element()}={value}" for value in values]


def setting(word: str) -> tuple[str, Any]:
    """Name and value of a word such as `optim.lr=1e-6`. Raises `Problems` for a word that does anything else."""
    override = parse(word)
    key, plain = override.key_or_group, override.type != OverrideType.DEL and override.package is None
    if not plain or override.is_sweep_override() or "${" in word or "/" in key:
        raise Problems(Problem(short_repr(word), "sets no value", "use key=value"))
    value = override.value()
    if names_target({key: value}):
        raise Problems(Problem(key, f"{TARGET} is named by config files only", "use another setting", "not-permitted"))
    return key, value
