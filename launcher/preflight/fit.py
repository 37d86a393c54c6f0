"""Values that nobody gave and that depend on the rows and on memory: the batch, and what it takes to fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import lcm

from launcher.preflight.checks import memory
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.memory_fit import cheapest
from launcher.spec.run import RunSpec

BATCH = "data.train_batch_size"
STEPS = 8
"""Steps of an epoch that there should be at least."""
LEAST = 8
"""Rows of a batch, unless there are fewer."""


def fitted(asked: Context, given: Collection[str]) -> Context:
    """The run with the values that fit its rows, and the memory of its processes, wherever they are not `given`."""
    run = asked.asked
    if BATCH not in given and (batch := _batch(asked)) != run.data.train_batch_size:
        run = replace(run, data=replace(run.data, train_batch_size=batch))
    if not asked.model_problems:
        run = _in_memory(run, given)
    if run == asked.asked:
        return asked
    made = Context(run, asked.here)
    for name in ("train", "val", "lengths"):  # reading rows takes long, and they are the same
        if name in vars(asked):
            vars(made)[name] = vars(asked)[name]
    return made


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
