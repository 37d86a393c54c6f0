"""Checks the numbers of a run against each other: batch and rows, steps and frequencies."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.descriptions import fields_of, written
from launcher.core.check_result import CheckResult
from launcher.core.numbers import compact
from launcher.data.files import Files
from launcher.preflight.checks.context import Context, Steps
from launcher.spec.run import RunSpec, size_factor

UPDATES, MOST_EPOCHS = 100, {"answers": 3, "pairs": 3, "prompts": 10, "mixed": 3}
"""Least updates that a run should have, and most epochs before a pretrained model overfits, by kind of rows."""
SMALL_UPDATES = 1_000
"""Least updates with which a small model from scratch learns answers."""
FEW, TRIAL = 0.2, 3
"""Part of those updates below which hardly anything is learnt; most steps of a run that is only a trial."""
UNTESTED = ("sampler.val_temperature", "sampler.val_n", "trainer.log_val_generations")
"""Settings that only validation reads."""


def check(context: Context) -> Iterator[CheckResult]:
    """Check that batches divide evenly, that steps suffice, and that frequencies are reached."""
    run, counts = context.run, context.steps
    trainer, batch = run.trainer, run.data.train_batch_size
    if counts.rows is not None and counts.rows < batch:
        largest = run.largest_batch(counts.rows)
        fix = f"use {largest}" if largest else "use more data or fewer processes"
        yield CheckResult("FAIL", "data.train_batch_size", f"got {batch}, and the data has {counts.rows} rows", fix)
        return
    yield CheckResult("OK", "batch", _describe_batch(run, counts))
    if counts.left_over and not run.data.shuffle and (counts.epochs or 0) >= 1:
        message = f"the last {counts.left_over} of {counts.rows} rows are never trained on"
        yield CheckResult("WARN", "data.train_batch_size", message, "use data.shuffle=true")
    if counts.steps is None:
        return
    yield CheckResult("OK", "steps", _describe_steps(counts))
    yield from _check_few_updates(context, counts.steps)
    for group, optim in (("optim", run.optim), ("critic.optim", run.critic.optim)):
        if optim.lr_warmup_steps >= counts.steps and (group == "optim" or "critic" in run.algorithm.needs):
            message = f"rises over {optim.lr_warmup_steps} steps, and the run has {counts.steps}"
            yield CheckResult("WARN", f"{group}.lr_warmup_steps", message, f"use {counts.steps // 10}")
    if trainer.critic_warmup >= counts.steps:
        message = f"only the critic learns for {trainer.critic_warmup} steps, and the run has {counts.steps}"
        yield CheckResult("FAIL", "trainer.critic_warmup", message, f"use at most {counts.steps - 1}")
    yield from _check_frequencies(run, counts)


def has_own_rows(context: Context) -> bool:
    """Whether the run's rows come from files; a generated dataset has as many as its settings say."""
    return isinstance(context.run.data, Files) and bool(context.train.rows)


def enough_epochs(context: Context) -> int | None:
    """Epochs with enough updates: many for a model from scratch, few where a pretrained one would overfit."""
    run, steps = context.run, context.steps
    if not steps.steps_per_epoch or not has_own_rows(context):
        return None
    epochs = -(-_enough_updates(run) // (steps.steps_per_epoch * steps.mini_batches))
    return epochs if _enough_updates(run) == SMALL_UPDATES else min(epochs, MOST_EPOCHS[run.algorithm.data])


def _enough_updates(run: RunSpec) -> int:
    return SMALL_UPDATES if size_factor(run.model) > 1 and not run.algorithm.sampled else UPDATES


def _check_few_updates(context: Context, steps: int) -> Iterator[CheckResult]:
    """Check a length that was given for having far fewer updates than the one that would be fitted."""
    run, enough, per_epoch = context.run, enough_epochs(context), context.steps.steps_per_epoch
    updates = steps * context.steps.mini_batches
    if enough and per_epoch and TRIAL < steps < enough * per_epoch and updates < FEW * _enough_updates(run):
        by_steps = run.trainer.total_training_steps is not None
        name, more = ("total_training_steps", enough * per_epoch) if by_steps else ("total_epochs", enough)
        message = f"{_count(updates, 'update')} in {_count(steps, 'step')}: with so few hardly anything is learnt"
        yield CheckResult("WARN", f"trainer.{name}", message, f"use {more}")


def _check_frequencies(run: RunSpec, counts: Steps) -> Iterator[CheckResult]:
    """Check for frequencies that the run is too short for, or that do not coincide."""
    trainer, steps = run.trainer, counts.steps or 0
    save, test, best = trainer.save_freq, trainer.test_freq, trainer.best_metric
    for name, frequency, what in (("save_freq", save, "saved"), ("test_freq", test, "validated")):
        if frequency > steps:
            message = f"every {frequency} steps, and the run has {steps}: {what} at the end only"
            yield CheckResult("WARN", f"trainer.{name}", message, f"use {max(steps // 4, 1)}")
    if counts.val_rows == 0:
        yield from _check_unused_validation(run)
    elif counts.val_rows and 0 < save <= steps and test > 0 and save % test and best and trainer.keep_best:
        message = f"every {test} steps, and every {save} are saved: only what was validated can be the best checkpoint"
        yield CheckResult("WARN", "trainer.test_freq", message, f"use {save}")


def _check_unused_validation(run: RunSpec) -> Iterator[CheckResult]:
    """Check for settings that only validation reads, where no rows are held out."""
    if run.trainer.test_freq > 0:
        message = "nothing is held out, so nothing is validated"
        yield CheckResult("WARN", "trainer.test_freq", message, "set data.val_files, or use -1")
    for name in UNTESTED:
        group, _, setting = name.partition(".")
        group_settings = getattr(run, group)
        if (value := getattr(group_settings, setting)) != fields_of(type(group_settings))[setting].default:
            message = f"{written(value)} has no effect, as nothing is held out"
            yield CheckResult("WARN", name, message, "set data.val_files, or leave it out")
    if best := run.trainer.best_metric:
        message = f"{best} is never measured, as there are no held-out rows"
        yield CheckResult("WARN", "trainer.best_metric", message, "set data.val_files")


def _describe_batch(run: RunSpec, counts: Steps) -> str:
    what = {"pairs": "pairs", "answers": "demonstrations"}.get(run.algorithm.data, "prompts")
    answers = f" x {counts.answers // counts.prompts} answers" if run.algorithm.sampled else ""
    processes = f"{counts.processes} processes" if counts.processes > 1 else "one process"
    limit = f" of at most {run.trainer.max_tokens_per_gpu} tokens" if run.trainer.max_tokens_per_gpu else ""
    updates, parts = _count(counts.mini_batches, "update"), _count(counts.micro_batches, "micro-batch", "es")
    return f"{counts.prompts} {what}{answers} on {processes}, {updates} a step, {parts}{limit} an update"


def _describe_steps(counts: Steps) -> str:
    text = f"{counts.steps:,}"
    if counts.steps_per_epoch:
        epochs = counts.epochs or 0
        text += f" ({compact(epochs)} epoch{'' if epochs == 1 else 's'} of {counts.steps_per_epoch:,}"
        text += f", {counts.left_over:,} rows left over)" if counts.left_over else ")"
    if counts.validations is not None:
        text += f", {_count(counts.validations, 'validation')}"
    return text + (f", {_count(counts.checkpoints, 'checkpoint')}" if counts.checkpoints is not None else "")


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"
