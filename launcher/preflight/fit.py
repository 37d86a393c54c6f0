"""Values that nobody gave and that depend on the rows and on memory: the batch, and what it takes to fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import lcm
from typing import Any

from pydantic import ValidationError

from launcher.config.defaults import REASONS, derive
from launcher.config.explain import explain
from launcher.config.nodes import flat
from launcher.core.problems import Problems
from launcher.core.settings import from_node
from launcher.models.scratch import Scratch
from launcher.preflight.checks import memory
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.disk import checkpoint_bytes
from launcher.preflight.checks.memory_fit import cheapest, value_of, with_settings
from launcher.preflight.checks.steps import enough_epochs, has_own_rows
from launcher.spec.data import prompt_turns
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

BATCH = "data.train_batch_size"
STEPS = 8
"""Steps of an epoch that there should be at least."""
LEAST = 8
"""Rows of a batch, unless there are fewer."""
VALIDATIONS = 5
"""Of a run, after the first."""
SMALL_BYTES = 2**28
"""Of a checkpoint that may be written at each validation."""
LETTERS = 4_000
"""Characters of the rows that a vocabulary takes up at most."""


def fit_settings(asked: Context, given: Collection[str]) -> Context:
    """The run with the values that fit its rows, and the memory of its processes, wherever they are not `given`."""
    if "data.val_share" not in given and _is_too_few(asked, BATCH in given):
        asked = _changed(asked, (("data.val_share", 0.0),))
    for name, fit in FITS.items():  # each reads what those before it chose
        if name not in given and (value := fit(asked)) is not None and value != value_of(asked.asked, name):
            asked = _changed(asked, ((name, value),))
    if asked.model_problems:
        return asked
    run, found = asked.run, _in_memory(asked.run, given)
    return _changed(asked, tuple((name, value_of(found, name)) for name in (*memory.SETTINGS, "data.val_share")
                                 if value_of(found, name) != value_of(run, name)))  # fmt: skip


def _changed(context: Context, changes: tuple[tuple[str, Any], ...]) -> Context:
    if not changes or not (fitting := with_settings(context.asked, changes)):  # a hub's model keeps its name
        return context
    made, names = Context(fitting, context.here), {name for name, _ in changes}
    for name in () if "data.val_share" in names else ("train", "val", *["lengths"] * ("model.alphabet" not in names)):
        if name in vars(context):  # reading rows takes long, and they are the same
            vars(made)[name] = vars(context)[name]
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


def _is_too_few(context: Context, batch_given: bool) -> bool:
    """Whether none is held out, or none should be: where a batch that was given takes all rows."""
    train, held_out = context.train, len(context.val.rows)
    every, batch = len(train.rows) + held_out, context.run.data.train_batch_size
    few = train.complete and batch_given and len(train.rows) < batch <= every
    if context.run.engine.validates_whole_batches and context.run.algorithm.data == "answers":
        few = few or held_out < (batch if batch_given else _batch(context))
    return bool(context.run.data.val_share and train.rows) and (few or not held_out)


def _alphabet(context: Context) -> str | None:
    """That of a model from scratch, with the characters of the rows that it lacks: the most frequent ones."""
    model, rows = context.asked.model, (*context.train.rows, *context.val.rows)
    if not isinstance(model, Scratch) or not has_own_rows(context):
        return None
    counts = Counter[str]()
    for row in rows:
        for text in (*(content for _, content in prompt_turns(row)), row.response, row.rejected, row.ground_truth):
            counts.update(text or "")
    lacking = [(-count, letter) for letter, count in counts.items() if letter not in model.alphabet]
    return model.alphabet + "".join(sorted(letter for _, letter in sorted(lacking)[:LETTERS]))


def _batch(context: Context) -> int:
    """The usual batch, or a smaller one where an epoch would have only a few steps."""
    run = context.asked
    usual, rows = run.data.train_batch_size, context.steps.rows
    unit = lcm(run.hardware.processes, run.trainer.ppo_mini_batch_size or 1)
    if rows is None or rows >= STEPS * usual or rows < unit:
        return usual
    wanted = max(2 ** (max(rows // STEPS, 1).bit_length() - 1), min(LEAST, rows))
    return max(min(wanted, usual) // unit, 1) * unit


def _epochs(context: Context) -> int | None:
    return None if context.run.trainer.total_training_steps else enough_epochs(context)


def _test_freq(context: Context) -> int | None:
    """A few validations on what was held out for want of other rows, which are not many."""
    steps = context.steps
    return -(-steps.steps // VALIDATIONS) if context.run.data.val_share and steps.steps and steps.val_rows else None


def _save_freq(context: Context) -> int | None:
    """At each validation where checkpoints are small, so that the best one is kept."""
    size = checkpoint_bytes(context.run)
    return _test_freq(context) and context.run.trainer.test_freq if size and size <= SMALL_BYTES else None


FITS: dict[str, Callable[[Context], Any]] = {
    "model.alphabet": _alphabet, BATCH: _batch,
    "trainer.total_epochs": _epochs, "trainer.test_freq": _test_freq, "trainer.save_freq": _save_freq,
}  # fmt: skip


def _in_memory(run: RunSpec, given: Collection[str]) -> RunSpec:
    """The cheapest run that fits; the same where none does, or where it is not known. On a CPU, where memory is rarely
    short, only what must be is changed. Where held-out rows are what does not fit, and nobody asked for them, none are
    held out: their answers need all weights on each process."""
    limit = memory.limit(run.taken)
    estimate = run.engine.memory(run)
    if limit is None or estimate is None or (run.hardware.is_cpu and estimate.at_most_bytes <= limit):
        return run
    free = [name for name in memory.SETTINGS if name not in given]
    found = cheapest(run, limit, free)
    if found is None and run.data.val_share and "data.val_share" not in given and not run.algorithm.sampled:
        untested = with_settings(run, (("data.val_share", 0.0),))
        found = cheapest(untested, limit, free) if untested else None
    return found.run if found else run
