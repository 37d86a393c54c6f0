"""What is known of a launch beside its config, and what a rule says of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from launcher.core.problems import Code, Problem

PROGRAMS = ("hdfs", "nsys")
"""What verl calls by its name."""


@dataclass(frozen=True)
class LaunchFacts:
    """What was found of data, model, cluster and environment; None is not known, and then not judged."""

    rows: int | None = None
    """Training rows, after too long prompts are left out."""
    val_rows: int | None = None
    data_sources: frozenset[str] | None = None
    """The values of `data_source` in the rows."""
    val_data_sources: frozenset[str] | None = None
    unlabelled: int = 0
    """Held-out rows without a ground truth."""
    columns: frozenset[str] | None = None
    """Columns of the training files."""
    agents: frozenset[str] | None = None
    """The values of `agent_name` in the rows."""
    reward_keys: frozenset[str] | None = None
    """What the dict of the user's reward function holds; None of a number."""
    unaccepted: tuple[str, ...] = ()
    """Arguments that verl gives to the user's reward function, and that it does not take."""
    differs_by_turn: str | None = None
    """Where the first conversation of SFT stands that is another one if it is written turn by turn."""
    longest_row: int | None = None
    """Tokens of the longest row of SFT."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt that is kept."""
    vocabulary: int | None = None
    positions: int | None = None
    """The model's `max_position_embeddings`."""
    heads: int | None = None
    """Attention heads."""
    kv_heads: int | None = None
    layers: int | None = None
    experts: int | None = None
    """Of a layer of experts; 0 of a model that has none."""
    architectures: tuple[str, ...] | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    visible_gpus: int | None = None
    """Of this machine, where CUDA_VISIBLE_DEVICES is given to the run."""
    cpus_per_node: int | None = None
    checkpoint_world: int | None = None
    """Processes that wrote the checkpoint that is resumed from."""
    adapter_rank: int | None = None
    """Of the adapter that training begins with."""
    folders: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The names in each folder that the config names for a tokenizer, a config or an adapter."""
    bound: Mapping[str, frozenset[str] | str] = field(default_factory=dict)
    """The names in each Python file that the config names; a text is why it does not compile."""
    function_tools: Mapping[str, str] | None = None
    """Functions of function_tool_path that are tools, each with why verl makes none of it."""
    tools: tuple[tuple[str, str], ...] = ()
    """Class and type of each tool of tool_config_path."""
    agent_loops: Mapping[str, str] | None = None
    """The agent loops that agent_loop_config_path registers, with the class of each."""
    existing: frozenset[str] | None = None
    """Of the paths that the config names, those that exist."""
    packages: frozenset[str] | None = None
    """Names that can be imported in the environment that runs verl."""
    programs: frozenset[str] | None = None
    """Of PROGRAMS, those that are on this machine."""
    variables: frozenset[str] | None = None
    """Environment variables that the run will have."""


@dataclass(frozen=True)
class RuleResult:
    """A problem, and whether the run fails of it."""

    level: Literal["FAIL", "WARN"]
    problem: Problem


Results = Iterator[RuleResult]


def fails(where: str, got: str, fix: str | Sequence[int] = "", code: Code = "invalid-setting") -> RuleResult:
    """The run ends, or hangs, or trains on something else; numbers as `fix` are values to use instead."""
    return RuleResult("FAIL", problem(where, got, fix, code))


def warns(where: str, got: str, fix: str | Sequence[int] = "", code: Code = "invalid-setting") -> RuleResult:
    """The run goes on, and probably not as it was meant."""
    return RuleResult("WARN", problem(where, got, fix, code))


def problem(where: str, got: str, fix: str | Sequence[int], code: Code) -> Problem:
    if isinstance(fix, str):
        return Problem(where, got, fix, code)
    return Problem(where, got, f"use {' or '.join(map(str, fix))}" if fix else "", code, value=next(iter(fix), None))


Rule = Callable[..., Results]
