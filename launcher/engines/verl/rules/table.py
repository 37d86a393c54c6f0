"""The rules of one shape, `rules.yaml`: what verl refuses of a setting, or does not read, whatever the sizes are."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from launcher.core.bounded_parse import LOADER
from launcher.core.problems import Code, short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, not_one_of, problem
from launcher.engines.verl.rules.settings import BatchSizes, at, is_set

FILE = Path(__file__).with_name("rules.yaml")
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NOTHING = object()
"""Of a key that the config does not have: no condition holds of it but `unset`."""


@dataclass(frozen=True)
class RuleRow:
    """A rule: what is said of a setting whose value meets `refused`, where the conditions on others are met, too."""

    keys: tuple[str, ...]
    refused: Any = "always"
    """The condition on the value, as `meets` reads it."""
    where: dict[str, Any] = field(default_factory=dict)
    """Conditions on other settings, by their keys."""
    got: str = "{}"
    """`{}` stands for the value."""
    fix: str = ""
    level: Literal["FAIL", "WARN"] = "FAIL"
    code: Code = "invalid-setting"
    allowed: tuple[Any, ...] = ()
    """Values that verl knows, in place of `refused`."""
    instead: dict[str, str] = field(default_factory=dict)
    """Of a value that verl does not know: what has it there."""


@dataclass(frozen=True)
class Package:
    """A package that a run needs in verl's environment, where the conditions are met."""

    name: str
    reason: str
    where: dict[str, Any] = field(default_factory=dict)
    install: str = ""
    """What to install, where that has another name."""


@cache
def rows() -> tuple[tuple[RuleRow, ...], tuple[Package, ...]]:
    node = yaml.load(FILE.read_bytes(), LOADER)  # a SafeLoader
    return tuple(map(_row, node["settings"])), tuple(Package(**entry) for entry in node["packages"])


def _row(entry: dict[str, Any]) -> RuleRow:
    rest = {name: value for name, value in entry.items() if name not in ("key", "allowed")}
    allowed = tuple(entry.get("allowed", ()))
    return RuleRow(tuple(entry["key"].split()), **rest, allowed=allowed)


def judge_rows(run: BatchSizes, facts: LaunchFacts) -> Results:
    unused = tuple(run.unused())
    for row in rows()[0]:
        for key in row.keys:
            value = at(run.config, key, NOTHING)
            if key.startswith(unused) or value is NOTHING or not all_meet(run, row.where):
                continue
            if row.allowed:
                yield from _not_allowed(row, key, value)
            elif meets(value, row.refused):
                shown = str(value).lower() if isinstance(value, bool) else value
                yield RuleResult(row.level, problem(key, row.got.format(shown), row.fix, row.code))


def judge_packages(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Packages that are imported only when a worker starts."""
    needed = {row.name: row for row in rows()[1] if all_meet(run, row.where)}
    for name, row in sorted(needed.items()):
        if facts.packages is not None and name not in facts.packages:
            fix = f"install {row.install or name} beside verl"
            yield fails(f"package {name}", f"not installed; needed by {row.reason}", fix, "not-installed")


def _not_allowed(row: RuleRow, key: str, value: Any) -> Iterator[RuleResult]:
    for each in value if isinstance(value, list) else [value]:
        if each in row.allowed:
            continue
        if fix := row.instead.get(str(each)):
            yield RuleResult(
                row.level, problem(key, f"{each}, which verl has by other settings", fix, "unknown-choice")
            )
        else:
            yield RuleResult(row.level, not_one_of(key, each, row.allowed))


def all_meet(run: BatchSizes, conditions: dict[str, Any]) -> bool:
    return all(meets(at(run.config, key), condition) for key, condition in conditions.items())


def meets(value: Any, condition: Any) -> bool:
    """Whether a value meets a condition of the table: `set`, `unset`, `always`, `< 1` (any of the four comparisons),
    `~ PATTERN` (what its text contains), a list of values, `{not: CONDITION}`, or the value itself."""
    if isinstance(condition, dict):
        return not meets(value, condition["not"])
    if isinstance(condition, list):
        return value in condition
    if not isinstance(condition, str):
        return bool(value == condition and isinstance(value, bool) == isinstance(condition, bool))
    sign, _, operand = condition.partition(" ")
    if sign in COMPARED:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(COMPARED[sign](value, float(operand)))
    if sign == "~":
        return value is not None and re.search(operand, short_repr(value, 10_000)) is not None
    named = {"set": is_set(value), "unset": not is_set(value), "always": True}
    return named.get(condition, value == condition)
