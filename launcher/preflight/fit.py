"""Values that nobody gave and that depend on the rows and on memory: the batch, and what it takes to fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import lcm
from typing import Any

from pydantic import ValidationError

from launcher.config.defaults import REASONS, derive
from launcher.config.explain import explain
from launcher.config.nodes import flat
from launcher.core.problems import Problems
from launcher.core.settings import from_node
from launcher.preflight.checks import memory
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.memory_fit import cheapest, value_of, with_settings
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

BATCH = "data.train_batch_size"
FITTED = (BATCH, *memory.SETTINGS)
STEPS = 8
"""Steps of an epoch that there should be at least."""
LEAST = 8
"""Rows of a batch, unless there are fewer."""


def fit_settings(asked: Context, given: Collection[str]) -> Context:
    """The run with the values that fit its rows, and the memory of its processes, wherever they are not `given`."""
    found = run = asked.run
    if BATCH not in given and (batch := _batch(asked)) != run.data.train_batch_size:
        found = replace(run, data=replace(run.data, train_batch_size=batch))
    if not asked.model_problems:
        found = _in_memory(found, given)
    changes = tuple((name, value_of(found, name)) for name in FITTED if value_of(found, name) != value_of(run, name))
    if not changes or not (fitting := with_settings(asked.asked, changes)):  # a hub's model keeps its name
        return asked
    made = Context(fitting, asked.here)
    for name in ("train", "val", "lengths"):  # reading rows takes long, and they are the same
        if name in vars(asked):
            vars(made)[name] = vars(asked)[name]
    return made


def refit_settings(run: RunSpec, given: Collection[str]) -> tuple[RunSpec, list[str]]:
    """The run once its models and data are here, with the values of a launch that finds them here; a line for each that
    changed. Raises `Problems` where a given value does not fit."""
    node = to_node(run)
    for name in REASONS.keys() - set(given):
        group: Any = node
        *above, last = name.split(".")
        for key in above:
            group = group[key]
        group.pop(last, None)
    derive(node)
    try:
        made = fit_settings(Context(from_node(RunSpec, node), here=True), given).asked
    except ValidationError as error:
        raise Problems(explain(error, node)) from error
    now = flat(to_node(made))
    return made, [
        f"{name}: {value} -> {now[name]}, {REASONS[name]}"
        for name, value in flat(to_node(run)).items()
        if value != now[name]
    ]


def _batch(context: Context) -> int:
    """The usual batch, or a smaller one where an epoch would have only a few steps."""
    run = context.asked
    usual, rows = run.data.train_batch_size, context.steps.rows
    unit = lcm(run.hardware.processes, run.trainer.ppo_mini_batch_size or 1)
    if rows is None or rows >= STEPS * usual or rows < unit:
        return usual
    wanted = max(2 ** (max(rows // STEPS, 1).bit_length() - 1), min(LEAST, rows))
    return max(min(wanted, usual) // unit, 1) * unit


def _in_memory(run: RunSpec, given: Collection[str]) -> RunSpec:
    """The cheapest run that fits; the same where none does, or where it is not known. On a CPU, where memory is rarely
    short, only what must be is changed."""
    limit = memory.limit(run.taken)
    estimate = run.engine.memory(run)
    if limit is None or estimate is None or (run.hardware.is_cpu and estimate.at_most_bytes <= limit):
        return run
    found = cheapest(run, limit, [name for name in memory.SETTINGS if name not in given])
    return found.run if found else run
