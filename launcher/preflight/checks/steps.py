"""The numbers of a run against each other: batch and rows, steps and frequencies."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.config.descriptions import fields_of, written
from launcher.core.check_result import CheckResult
from launcher.data.files import Files
from launcher.preflight.checks.context import Context, Steps
from launcher.spec.run import RunSpec, size_factor

UPDATES, MOST_EPOCHS = 100, {"answers": 3, "pairs": 3, "prompts": 10, "mixed": 3}
"""Updates that a run should have at least, and epochs that are not too many for a pretrained model: it overfits."""
SMALL_UPDATES = 1_000
"""Updates that a model for exercises needs to learn answers."""
FEW, TRIAL = 0.2, 3
"""Part of those updates with which hardly anything is learnt; steps of a run that is only to show that it runs."""
UNTESTED = ("sampler.val_temperature", "sampler.val_n", "trainer.log_val_generations")
"""What only validation reads."""


def check(context: Context) -> Iterator[CheckResult]:
    """Batches that do not divide evenly, and frequencies that never come."""
    run, found = context.run, context.steps
    trainer, batch = run.trainer, run.data.train_batch_size
    if found.rows is not None and found.rows < batch:
        fits = run.largest_batch(found.rows)
        fix = f"use {fits}" if fits else "use more data or fewer processes"
        yield CheckResult("FAIL", "data.train_batch_size", f"got {batch}, and the data has {found.rows} rows", fix)
        return
    yield CheckResult("OK", "batch", _batch(run, found))
    if found.left_over and not run.data.shuffle and (found.epochs or 0) >= 1:
        message = f"the last {found.left_over} of {found.rows} rows are never trained on"
        yield CheckResult("WARN", "data.train_batch_size", message, "use data.shuffle=true")
    if found.steps is None:
        return
    yield CheckResult("OK", "steps", _steps(found))
    yield from _few_updates(context, found.steps)
    for where, optim in (("optim", run.optim), ("critic.optim", run.critic.optim)):
        if optim.lr_warmup_steps >= found.steps and (where == "optim" or "critic" in run.algorithm.needs):
            message = f"rises over {optim.lr_warmup_steps} steps, and the run has {found.steps}"
            yield CheckResult("WARN", f"{where}.lr_warmup_steps", message, f"use {found.steps // 10}")
    if trainer.critic_warmup >= found.steps:
        message = f"only the critic learns for {trainer.critic_warmup} steps, and the run has {found.steps}"
        yield CheckResult("FAIL", "trainer.critic_warmup", message, f"use at most {found.steps - 1}")
    yield from _saving(run, found)


def has_own_rows(context: Context) -> bool:
    """Whether they come from files: rows of a generated dataset are as many as its settings say."""
    return isinstance(context.run.data, Files) and bool(context.train.rows)


def enough_epochs(context: Context) -> int | None:
    """Enough for a number of updates: many where the model starts from nothing, few where it would overfit."""
    run, steps = context.run, context.steps
    if not steps.steps_per_epoch or not has_own_rows(context):
        return None
    epochs = -(-_enough_updates(run) // (steps.steps_per_epoch * steps.mini_batches))
    return epochs if _enough_updates(run) == SMALL_UPDATES else min(epochs, MOST_EPOCHS[run.algorithm.data])


def _enough_updates(run: RunSpec) -> int:
    return SMALL_UPDATES if size_factor(run.model) > 1 and not run.algorithm.sampled else UPDATES


def _few_updates(context: Context, steps: int) -> Iterator[CheckResult]:
    """Of a length that was given: the one that is fitted has more, wherever more would help."""
    run, enough, each = context.run, enough_epochs(context), context.steps.steps_per_epoch
    updates = steps * context.steps.mini_batches
    if enough and each and TRIAL < steps < enough * each and updates < FEW * _enough_updates(run):
        by_steps = run.trainer.total_training_steps is not None
        name, more = ("total_training_steps", enough * each) if by_steps else ("total_epochs", enough)
        message = f"{_count(updates, 'update')} in {_count(steps, 'step')}: with so few hardly anything is learnt"
        yield CheckResult("WARN", f"trainer.{name}", message, f"use {more}")


def _saving(run: RunSpec, found: Steps) -> Iterator[CheckResult]:
    """Frequencies that the run is too short for, or that miss each other."""
    trainer, steps = run.trainer, found.steps or 0
    save, test, best = trainer.save_freq, trainer.test_freq, trainer.best_metric
    for name, frequency, what in (("save_freq", save, "saved"), ("test_freq", test, "validated")):
        if frequency > steps:
            message = f"every {frequency} steps, and the run has {steps}: {what} at the end only"
            yield CheckResult("WARN", f"trainer.{name}", message, f"use {max(steps // 4, 1)}")
    if found.val_rows == 0:
        yield from _unvalidated(run)
    elif found.val_rows and 0 < save <= steps and test > 0 and save % test and best and trainer.keep_best:
        message = f"every {test} steps, and every {save} are saved: only what was validated can be the best checkpoint"
        yield CheckResult("WARN", "trainer.test_freq", message, f"use {save}")


def _unvalidated(run: RunSpec) -> Iterator[CheckResult]:
    """Settings that are read by validation alone, where no rows are held out."""
    if run.trainer.test_freq > 0:
        message = "nothing is held out, so nothing is validated"
        yield CheckResult("WARN", "trainer.test_freq", message, "set data.val_files, or use -1")
    for name in UNTESTED:
        group, _, setting = name.partition(".")
        held = getattr(run, group)
        if (value := getattr(held, setting)) != fields_of(type(held))[setting].default:
            message = f"{written(value)} has no effect, as nothing is held out"
            yield CheckResult("WARN", name, message, "set data.val_files, or leave it out")
    if best := run.trainer.best_metric:
        message = f"{best} is never measured, as there are no held-out rows"
        yield CheckResult("WARN", "trainer.best_metric", message, "set data.val_files")


def _batch(run: RunSpec, found: Steps) -> str:
    what = {"pairs": "pairs", "answers": "demonstrations"}.get(run.algorithm.data, "prompts")
    answers = f" x {found.answers // found.prompts} answers" if run.algorithm.sampled else ""
    on = f"{found.processes} processes" if found.processes > 1 else "one process"
    room = f" of at most {run.trainer.max_tokens_per_gpu} tokens" if run.trainer.max_tokens_per_gpu else ""
    updates, parts = _count(found.mini_batches, "update"), _count(found.micro_batches, "micro-batch", "es")
    return f"{found.prompts} {what}{answers} on {on}, {updates} a step, {parts}{room} an update"


def _steps(found: Steps) -> str:
    text = f"{found.steps:,}"
    if found.steps_per_epoch:
        epochs = found.epochs or 0
        text += f" ({_rounded(epochs)} epoch{'' if epochs == 1 else 's'} of {found.steps_per_epoch:,}"
        text += f", {found.left_over:,} rows left over)" if found.left_over else ")"
    if found.validations is not None:
        text += f", {_count(found.validations, 'validation')}"
    return text + (f", {_count(found.checkpoints, 'checkpoint')}" if found.checkpoints is not None else "")


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:.2g}"
