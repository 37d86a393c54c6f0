"""Configs that verl accepts and that fail late are named; the healthy ones beside them are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core.problems import Problem
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.rules import early, late
from launcher.engines.verl.rules.facts import LaunchFacts

TABLE = yaml.safe_load((Path(__file__).with_name("late.yaml")).read_text())
CASES: list[dict[str, Any]] = TABLE["cases"]
SETS = (
    "data_sources", "val_data_sources", "columns", "agents", "reward_keys", "packages", "variables", "existing",
    "programs",
)  # fmt: skip
TUPLES = ("architectures", "unaccepted")


def facts_of(values: dict[str, Any]) -> LaunchFacts:
    made = {key: frozenset(value) if key in SETS else value for key, value in values.items()}
    return LaunchFacts(**{key: tuple(value) if key in TUPLES else value for key, value in made.items()})


def judged(base: str, words: list[str], facts: dict[str, Any]) -> tuple[list[Problem], list[Problem]]:
    """All that the three layers say: problems, and warnings with notes."""
    start = TABLE["bases"][base]
    given = {word.partition("=")[0].lstrip("+") for word in words}
    kept = [word for word in start["words"] if word.partition("=")[0].lstrip("+") not in given]
    plain = {word.lstrip("+").partition("=")[0] for word in start["words"] if word.startswith("+")}
    words = [f"+{word}" if word.partition("=")[0] in plain else word for word in words]
    made = compose([*kept, *words], start["program"])
    found = facts_of(start["facts"] | facts)
    problems = [*made.problems, *early.problems(made.config), *late.problems(made.config, found)]
    return problems, [*made.notes, *late.warnings(made.config, found)]


@pytest.mark.parametrize("base", TABLE["bases"])
def test_a_healthy_config_has_no_problem(base):
    assert judged(base, [], {}) == ([], [])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['where']}-{case['evidence']}")
def test_what_fails_late_is_named_and_what_does_not_is_not(case):
    problems, _ = judged(case["base"], case.get("words", []), case.get("facts", {}))
    named = [problem.where for problem in problems if problem.where.lstrip("+").startswith(case["where"])]
    assert named, list(map(str, problems))
    assert all(problem.fix for problem in problems)
    assert judged(case["base"], case.get("fixed", []), case.get("fixed_facts", {})) == ([], [])


@pytest.mark.parametrize("case", TABLE["warned"], ids=lambda case: f"{case['where']}-{case['evidence']}")
def test_what_is_not_as_it_was_meant_is_a_warning(case):
    problems, warnings = judged(case["base"], case.get("words", []), case.get("facts", {}))
    assert not problems
    assert [warning.where for warning in warnings] == [case["where"]]
    assert warnings[0].fix
    assert judged(case["base"], case.get("fixed", []), case.get("fixed_facts", {})) == ([], [])


def test_an_adapter_that_vllm_has_no_room_for():
    """Not in the table, as verl's own checks load vLLM where adapters are served (vllm_async_server.py:430)."""
    model = "actor_rollout_ref.model"
    words = [f"{model}.lora_adapter_path=/a", f"{model}.lora_rank=20"]
    (found,) = judged("grpo", words, {"adapter_rank": 64})[0]
    assert (found.where, found.fix, found.value) == (f"{model}.lora_rank", "use 64", 64)
    assert not judged("grpo", words, {"adapter_rank": 32})[0]  # 20 is rounded up
    assert not judged("grpo", [*words, f"{model}.lora.merge=True"], {"adapter_rank": 64})[0]


def test_each_case_is_named_once():
    for case in CASES:
        problems, _ = judged(case["base"], case.get("words", []), case.get("facts", {}))
        keys = [problem.where for problem in problems]
        assert len(keys) == len({*keys}), keys


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['where']}-{case['evidence']}")
def test_a_value_that_is_named_is_one_to_use(case):
    """With it the setting is not named again."""
    words = case.get("words", [])
    for problem in judged(case["base"], words, case.get("facts", {}))[0]:
        if problem.value is None:
            continue
        key = problem.where.lstrip("+")
        changed = [word for word in words if word.partition("=")[0].lstrip("+") != key]
        changed.append(f"{'+' if problem.where.startswith('+') else ''}{key}={problem.value}")
        left = judged(case["base"], changed, case.get("facts", {}))[0]
        assert key not in {one.where.lstrip("+") for one in left}, [str(problem), *map(str, left)]
