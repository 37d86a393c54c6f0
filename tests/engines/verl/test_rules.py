"""Configs that verl's command line accepts and that fail late are named; the healthy ones beside them are not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from launcher.core.problems import Problem
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import load
from launcher.engines.verl.rules import judge
from launcher.engines.verl.rules.facts import LaunchFacts
from launcher.engines.verl.rules.settings import BatchSizes
from launcher.engines.verl.rules.table import meets, read_table
from launcher.spec.engine import RunFacts

TABLE = yaml.safe_load((Path(__file__).with_name("rules.yaml")).read_text())
CASES: list[dict[str, Any]] = TABLE["cases"]
HEADS = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}


def facts_of(values: dict[str, Any]) -> LaunchFacts:
    sets = {key: frozenset(value) if isinstance(value, list) else value for key, value in values.items()}
    of_run = {each.name: sets[each.name] for each in fields(RunFacts) if each.name in sets}
    own = {each.name: sets[each.name] for each in fields(LaunchFacts) if each.name in sets}
    shape = {name: values.get(key) for key, name in HEADS.items()}
    run = RunFacts(Path(), here=True, **of_run)
    return LaunchFacts(run, shape=SimpleNamespace(**shape) if "heads" in values else None, **own)  # type: ignore[arg-type]


def judged(base: str, words: list[str], facts: dict[str, Any]) -> tuple[list[Problem], list[Problem]]:
    """All that is said: problems, and warnings with notes."""
    start = TABLE["bases"][base]
    given = {word.partition("=")[0].lstrip("+") for word in words}
    plain = {word.lstrip("+").partition("=")[0] for word in start["words"] if word.startswith("+")}
    words = [f"+{word}" if word.partition("=")[0] in plain else word for word in words]
    others = [word for word in start["words"] if word.partition("=")[0].lstrip("+") not in given]
    found = compose([*others, *words], start["program"])
    results = judge(found.config, facts_of(start["facts"] | facts))
    problems = [*found.problems, *(result.problem for result in results if result.level == "FAIL")]
    return problems, [*found.notes, *(result.problem for result in results if result.level == "WARN")]


@pytest.mark.parametrize("base", TABLE["bases"])
def test_a_healthy_config_has_no_problem(base):
    assert judged(base, [], {}) == ([], [])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["where"])
def test_what_fails_late_is_named_with_a_value_that_does_not(case):
    """With a value that is named, the setting is not named again; the healthy config beside it has no problem."""
    words, facts = case.get("words", []), case.get("facts", {})
    problems, _ = judged(case["base"], words, facts)
    keys = [problem.where for problem in problems]
    assert any(key.lstrip("+").startswith(case["where"]) for key in keys), list(map(str, problems))
    assert len(problems) == len({*map(str, problems)}) and all(problem.fix for problem in problems)
    for problem in problems:
        if problem.value is not None:
            key = problem.where.lstrip("+")
            changed = [word for word in words if word.partition("=")[0].lstrip("+") != key]
            changed.append(f"{'+' if problem.where.startswith('+') else ''}{key}={problem.value}")
            left, _ = judged(case["base"], changed, facts)
            assert key not in {each.where.lstrip("+") for each in left}, [str(problem), *map(str, left)]
    if "fixed" in case or "fixed_facts" in case:
        assert judged(case["base"], case.get("fixed", []), case.get("fixed_facts", {})) == ([], [])


@pytest.mark.parametrize("case", TABLE["warned"], ids=lambda case: case["where"])
def test_what_is_not_as_it_was_meant_is_a_warning(case):
    problems, warnings = judged(case["base"], case.get("words", []), case.get("facts", {}))
    assert not problems
    assert [warning.where for warning in warnings] == [case["where"]]
    assert warnings[0].fix


@pytest.mark.parametrize(
    ("value", "condition", "met"),
    [
        (1, "< 2", True), (2, "< 2", False), (True, "< 2", False), (None, "<= 2", False), ("???", "unset", True),
        ("", "set", False), (["wandb", "file"], "~ wandb", True), (None, "~ wandb", False), ("x", ["x", "y"], True),
        (4, "> a.b", True), (4, "> a.c", False), (4, "> a.d", False), (3, "!= a.b", False),
        ("x", {"not": ["x"]}, False), (1, True, False), (True, True, True), ("fsdp", "fsdp", True),
    ],
)  # fmt: skip
def test_a_condition_of_the_table(value, condition, met):
    assert meets(value, condition, {"a": {"b": 3, "c": None}}) is met


def test_the_table_names_settings_of_verl():
    """Also what it advises to use, where that is a whole key."""
    configs = [load("ppo", "ppo_trainer", {"model_engine": engine}) for engine in ("dp", "megatron")]
    configs += [load("sft", "sft_trainer_engine", {"engine": name, "optim": name}) for name in ("fsdp", "megatron")]
    beside = ("override_config", "reward_kwargs", "warmup_style")
    found = read_table()
    rows = [*found.sizes, *found.settings]
    named = {key for row in rows for key in (*row.key.split(), *row.where)}
    named |= {key for package in found.packages for key in package.where}
    unknown = [key for key in named if not any(part in key for part in beside)
               and all(BatchSizes(config)(key, "nothing") == "nothing" for config in configs)]  # fmt: skip
    assert not unknown
    assert all(row.fix or row.allowed for row in rows)
