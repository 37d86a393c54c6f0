"""The rules in `rules.yaml`: values that verl refuses or does not read, packages that it needs, and data sources that
its rewards know."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter

from launcher.core.bounded_parse import LOADER
from launcher.core.problems import Code, Problem, short_repr, suggest
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.settings import BatchSizes, at, is_set

FILE = Path(__file__).with_name("rules.yaml")
COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
NOTHING = object()
"""Of a key that the config does not have: no condition holds of it but `unset`."""


@dataclass(frozen=True)
class RuleRow:
    """A rule: what is said of a setting whose value meets `refused`, where the conditions on others are met, too."""

    key: str
    """The setting, or several separated by spaces; of a package its name."""
    refused: Any = "always"
    """The condition on the value, as `meets` reads it."""
    where: dict[str, Any] = field(default_factory=dict)
    """Conditions on other settings, by their keys."""
    got: str = "{}"
    """`{}` stands for the value; of a package, what needs it."""
    fix: str = ""
    level: Literal["FAIL", "WARN"] = "FAIL"
    code: Code = "invalid-setting"
    allowed: Sequence[Any] = ()
    """Values that verl knows, in place of `refused`."""
    instead: dict[str, str] = field(default_factory=dict)
    """By a value that verl does not know here: the fix that names the other settings for it."""


@dataclass(frozen=True)
class RuleTable:
    sizes: Sequence[RuleRow]
    """Rules on the sizes that everything else is divided by."""
    settings: Sequence[RuleRow]
    packages: Sequence[RuleRow]
    """Packages that a run needs in verl's environment, where the conditions are met."""
    sources: Sequence[str]
    """Values of data_source with a reward of verl's own, beside those that begin with aime."""


@cache
def read_table() -> RuleTable:
    return TypeAdapter(RuleTable).validate_python(yaml.load(FILE.read_bytes(), LOADER))  # a SafeLoader


def judge_rows(run: BatchSizes, rows: Sequence[RuleRow]) -> Results:
    unused = tuple(run.unused())
    for row in rows:
        for key in row.key.split():
            value = at(run.config, key, NOTHING)
            if key.startswith(unused) or value is NOTHING or not all_meet(run, row.where):
                continue
            if row.allowed:
                values = value if isinstance(value, list) else [value]
                yield from (_unknown_choice(row, key, each) for each in values if each not in row.allowed)
            elif meets(value, row.refused, run.config):
                shown = str(value).lower() if isinstance(value, bool) else value
                yield RuleResult(row.level, Problem(key, row.got.format(shown), row.fix, row.code))


def judge_packages(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Packages that are imported only when a worker starts."""
    needed = {row.key: row for row in read_table().packages if all_meet(run, row.where)}
    for name, row in sorted(needed.items()):
        if facts.packages is not None and name not in facts.packages:
            fix = f"install {row.fix or name} beside verl"
            yield fails(f"package {name}", f"not installed; needed by {row.got}", fix, "not-installed")


def judge_labels(run: BatchSizes, facts: LaunchFacts) -> Results:
    """The fields that verl's own rewards read in each row: its data source and ground truth."""
    function = "reward.custom_reward_function"
    others = is_set(run(f"{function}.path")) or run("reward.reward_model.enable")
    if others or run("reward.reward_manager.source") == "importlib":
        return
    if facts.run.unlabelled:
        got = f"{facts.run.unlabelled:,} rows have no ground truth, and verl scores their answers all the same"
        yield warns("data.val_files", got, "leave them out, or write reward_model.ground_truth", "bad-row")
    known = read_table().sources
    for split, sources in (("train", facts.run.data_sources), ("val", facts.run.val_data_sources)):
        for source in sorted(sources or ()):
            if source not in known and not source.startswith("aime"):
                got = f"{short_repr(source)} has no reward in verl: every answer fails once it is scored"
                near = next((name for name in known if name.lower().endswith(f"/{source.lower()}")), None)
                fix = f"use {function}.path, or reward=exact"
                fix = f"write data_source={near} in the rows, or {fix}" if near else fix
                yield fails(f"data.{split}_files", got, fix, "unknown-choice")


def _unknown_choice(row: RuleRow, key: str, value: Any) -> RuleResult:
    got, fix = f"{value}, which verl has by other settings", row.instead.get(str(value), "")
    if not fix:
        choices = [str(each) for each in row.allowed if each is not None]
        got, fix = f"got {short_repr(value)}", suggest(str(value), choices)
    return RuleResult(row.level, Problem(key, got, fix, "unknown-choice"))


def all_meet(run: BatchSizes, conditions: dict[str, Any]) -> bool:
    return all(meets(at(run.config, key), condition, run.config) for key, condition in conditions.items())


def meets(value: Any, condition: Any, config: dict[str, Any]) -> bool:
    """Whether a value meets a condition of the table: `set`, `unset`, `always`, `< 1` (any of the comparisons, with a
    number or the value of another key), `~ PATTERN` (what its text contains), a list of values, `{not: CONDITION}`, or
    the value itself."""
    if isinstance(condition, dict):
        return not meets(value, condition["not"], config)
    if isinstance(condition, list):
        return value in condition
    if not isinstance(condition, str):
        return bool(value == condition and isinstance(value, bool) == isinstance(condition, bool))
    sign, _, operand = condition.partition(" ")
    if sign in COMPARED:
        bound = at(config, operand) if operand[0].isalpha() else float(operand)
        return _is_number(value) and _is_number(bound) and bool(COMPARED[sign](value, bound))
    if sign == "~":
        return value is not None and re.search(operand, short_repr(value, 10_000)) is not None
    keywords = {"set": is_set(value), "unset": not is_set(value), "always": True}
    return keywords.get(condition, value == condition)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
