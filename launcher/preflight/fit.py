"""Fits settings that were not given to the rows and to memory: batch size, epochs, frequencies, parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
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
from launcher.preflight.checks.memory import cheapest, value_of, with_settings
from launcher.preflight.checks.steps import enough_epochs, has_own_rows
from launcher.spec.data import prompt_turns
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_node

BATCH = "data.train_batch_size"
STEPS = 8
"""Least number of steps that an epoch should have."""
LEAST = 8
"""Least number of rows of a batch, unless there are fewer rows."""
VALIDATIONS = 5
"""Number of validations of a run, after the first."""
SMALL_BYTES = 2**28
"""Largest checkpoint that is written at each validation."""
LETTERS = 4_000
"""Most characters of the rows that are added to an alphabet."""


def fit_settings(asked: Context, given: Collection[str]) -> Context:
    """The run with settings that are not `given` fitted to its rows and to the memory of its processes."""
    if "data.val_share" not in given and _holds_out_too_few(asked, BATCH in given):
        asked = _apply(asked, (("data.val_share", 0.0),))
    for name, fit in FITS.items():  # each depends on the values chosen before it
        if name not in given and (value := fit(asked)) is not None and value != value_of(asked.asked, name):
            asked = _apply(asked, ((name, value),))
    return asked if asked.model_problems else _apply(asked, tuple(_fit_memory(asked.run, given).items()))


def _apply(context: Context, changes: tuple[tuple[str, Any], ...]) -> Context:
    if not changes or not (new_run := with_settings(context.asked, changes)):  # `asked`: a hub's model keeps its name
        return context
    new_context, names = replace(context, asked=new_run), {name for name, _ in changes}
    for name in () if "data.val_share" in names else ("train", "val", *["lengths"] * ("model.alphabet" not in names)):
        if name in vars(context):  # reading rows takes long, and they stay the same
            vars(new_context)[name] = vars(context)[name]
    return new_context


def refit_settings(run: RunSpec, given: Collection[str]) -> tuple[RunSpec, list[str]]:
    """The run after its models and data were fetched, fitted as if they had been here before, and a line for each value
    that changed. Raises `Problems` where a given value does not fit."""
    node = to_node(run)
    for name in REASONS.keys() - set(given):
        group: Any = node
        *groups, setting = name.split(".")
        for key in groups:
            group = group[key]
        group.pop(setting, None)
    derive(node)
    try:
        refitted = fit_settings(Context(from_node(RunSpec, node), here=True), given).asked
    except ValidationError as error:
        raise Problems(explain(error, node)) from error
    new_values = flat(to_node(refitted))
    return refitted, [
        f"{name}: {value} -> {new_values[name]}, {REASONS[name]}"
        for name, value in flat(to_node(run)).items()
        if value != new_values[name]
    ]


def _holds_out_too_few(context: Context, batch_given: bool) -> bool:
    """Whether too few rows are held out, or left for training with the batch size that was given."""
    train, held_out = context.train, len(context.val.rows)
    n_rows, batch = len(train.rows) + held_out, context.run.data.train_batch_size
    too_few = train.complete and batch_given and len(train.rows) < batch <= n_rows
    if context.run.engine.validates_whole_batches and context.run.algorithm.data == "answers":
        too_few = too_few or held_out < (batch if batch_given else _batch(context))
    return bool(context.run.data.val_share and train.rows) and (too_few or not held_out)


def _alphabet(context: Context) -> str | None:
    """The alphabet of a model from scratch, with the most frequent characters of the rows that it lacks."""
    model, rows = context.asked.model, (*context.train.rows, *context.val.rows)
    if not isinstance(model, Scratch) or not has_own_rows(context):
        return None
    counts = Counter[str]()
    for row in rows:
        for text in (*(content for _, content in prompt_turns(row)), row.response, row.rejected, row.ground_truth):
            counts.update(text or "")
    missing = [(-count, character) for character, count in counts.items() if character not in model.alphabet]
    return model.alphabet + "".join(sorted(character for _, character in sorted(missing)[:LETTERS]))


def _batch(context: Context) -> int:
    """The default batch size, or a smaller one where an epoch would have fewer than `STEPS` steps."""
    run = context.asked
    default, rows = run.data.train_batch_size, context.steps.rows
    unit = lcm(run.hardware.processes, run.trainer.ppo_mini_batch_size or 1)
    if rows is None or rows >= STEPS * default or rows < unit:
        return default
    smaller = max(2 ** (max(rows // STEPS, 1).bit_length() - 1), min(LEAST, rows))
    return max(min(smaller, default) // unit, 1) * unit


def _test_freq(context: Context) -> int | None:
    """The frequency of a few validations, where the held-out rows come from the training files (data.val_share)."""
    steps = context.steps
    return -(-steps.steps // VALIDATIONS) if context.run.data.val_share and steps.steps and steps.val_rows else None


def _save_freq(context: Context) -> int | None:
    """The frequency of validation where checkpoints are small, so that the best one is saved."""
    size = checkpoint_bytes(context.run)
    return _test_freq(context) and context.run.trainer.test_freq if size and size <= SMALL_BYTES else None


FITS: dict[str, Callable[[Context], Any]] = {
    "model.alphabet": _alphabet, BATCH: _batch,
    "trainer.total_epochs": lambda of: None if of.run.trainer.total_training_steps else enough_epochs(of),
    "trainer.test_freq": _test_freq, "trainer.save_freq": _save_freq,
}  # fmt: skip


def _fit_memory(run: RunSpec, given: Collection[str]) -> dict[str, Any]:
    """The changes that make the cheapest run that fits; none where none does, or memory is unknown. On a CPU, where
    memory is rarely short, a run that fits is not changed. If only validation does not fit and was not asked for, no
    rows are held out: their answers need all weights on each process."""
    limit, estimate = memory.limit(run.taken), run.engine.memory(run)
    if limit is None or estimate is None or (run.hardware.is_cpu and estimate.at_most_bytes <= limit):
        return {}
    free = [name for name in memory.SETTINGS if name not in given]
    ways: list[dict[str, Any]] = [{}]
    if run.data.val_share and "data.val_share" not in given and not run.algorithm.sampled:
        ways.append({"data.val_share": 0.0})
    for changes in ways:
        changed = with_settings(run, tuple(changes.items()))
        if changed and (fit := cheapest(changed, limit, free)):
            return changes | fit.changes
    return {}
