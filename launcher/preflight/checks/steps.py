"""The arithmetic of a run: what a step is made of, how many there are, and what happens between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.core.check_result import CheckResult
from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Steps:
    """Numbers of one run. What depends on the rows is None while they are not known."""

    rows: int | None
    val_rows: int | None
    processes: int
    prompts: int
    """Rows of one step, over all processes."""
    answers: int
    """Sequences that a step learns from, over all processes; of a pair both."""
    mini_batches: int
    """Optimizer updates of one step."""
    micro_batches: int
    """Parts that each process computes an update in, by rows; with max_tokens_per_gpu no more than these."""
    steps_per_epoch: int | None
    steps: int | None
    left_over: int | None
    """Rows that do not fill a batch at the end of an epoch."""
    validations: int | None
    checkpoints: int | None

    @property
    def epochs(self) -> float | None:
        return self.steps / self.steps_per_epoch if self.steps and self.steps_per_epoch else None


def steps_of(run: RunSpec, rows: int | None, val_rows: int | None) -> Steps:
    """`rows` that can be learnt from and `val_rows` to validate with; None where that is not known yet."""
    trainer, batch = run.trainer, run.data.train_batch_size
    steps = trainer.total_training_steps if rows is None else run.total_steps(rows)
    return Steps(
        rows=rows, val_rows=val_rows, processes=run.hardware.processes, prompts=batch,
        answers=batch * run.sequences_per_prompt, mini_batches=run.mini_batches * trainer.ppo_epochs,
        micro_batches=run.micro_batches, steps_per_epoch=None if rows is None else run.steps_per_epoch(rows),
        steps=steps, left_over=None if rows is None else rows % batch,
        validations=_validations(run, steps, val_rows), checkpoints=_times(trainer.save_freq, steps),
    )  # fmt: skip


def _times(frequency: int, steps: int | None) -> int | None:
    """How often something happens that also happens at the last step."""
    if frequency <= 0:
        return 1
    if steps is None:
        return None
    return steps // frequency + (steps % frequency > 0)


def _validations(run: RunSpec, steps: int | None, val_rows: int | None) -> int | None:
    if val_rows == 0:
        return 0
    times = _times(run.trainer.test_freq, steps)
    return None if times is None else times + run.trainer.val_before_train


def check(run: RunSpec, found: Steps) -> Iterator[CheckResult]:
    """What does not come out even, and what never happens."""
    trainer, batch = run.trainer, run.data.train_batch_size
    if found.rows is not None and found.rows < batch:
        fits = run.largest_batch(found.rows)
        fix = f"{fits} would do" if fits else "more data, or fewer processes, would do"
        yield CheckResult("FAIL", "data.train_batch_size", f"got {batch}, and the data has {found.rows} rows", fix)
        return
    yield CheckResult("OK", "batch", _batch(run, found))
    if found.left_over and not run.data.shuffle and (found.epochs or 0) >= 1:
        yield CheckResult(
            "WARN", "data.train_batch_size", f"the last {found.left_over} of {found.rows} rows are never learnt from",
            "data.shuffle=true would do",
        )  # fmt: skip
    if found.steps is None:
        return
    yield CheckResult("OK", "steps", _steps(found))
    for where, optim in (("optim", run.optim), ("critic.optim", run.critic.optim)):
        if optim.lr_warmup_steps >= found.steps and (where == "optim" or "critic" in run.algorithm.needs):
            yield CheckResult(
                "WARN", f"{where}.lr_warmup_steps",
                f"rises over {optim.lr_warmup_steps} steps, and the run has {found.steps}",
                f"{max(found.steps // 10, 0)} would do",
            )  # fmt: skip
    if trainer.critic_warmup >= found.steps:
        yield CheckResult(
            "FAIL", "trainer.critic_warmup",
            f"only the critic learns for {trainer.critic_warmup} steps, and the run has {found.steps}",
            f"at most {found.steps - 1} would do",
        )  # fmt: skip
    yield from _saving(run, found)


def _saving(run: RunSpec, found: Steps) -> Iterator[CheckResult]:
    """Frequencies that the run is too short for, or that miss each other."""
    trainer, steps = run.trainer, found.steps or 0
    for name, frequency, what in (
        ("save_freq", trainer.save_freq, "saved"),
        ("test_freq", trainer.test_freq, "validated"),
    ):
        if frequency > steps:
            yield CheckResult(
                "WARN", f"trainer.{name}", f"every {frequency} steps, and the run has {steps}: {what} at the end only",
                f"{max(steps // 4, 1)} would do",
            )  # fmt: skip
    both = trainer.save_freq > 0 and trainer.save_freq <= steps and found.val_rows
    if (
        both
        and trainer.best_metric
        and trainer.keep_best
        and trainer.test_freq > 0
        and trainer.save_freq % trainer.test_freq
    ):
        yield CheckResult(
            "WARN", "trainer.test_freq",
            f"every {trainer.test_freq} steps, and every {trainer.save_freq} are saved: only what was validated can be"
            " the best checkpoint", f"{trainer.save_freq} would do",
        )  # fmt: skip
    if found.val_rows == 0 and trainer.test_freq > 0:
        yield CheckResult(
            "WARN", "trainer.test_freq", "nothing is held out, so nothing is validated",
            "data.val_files=FILE would do, or -1",
        )  # fmt: skip
    if found.val_rows == 0 and trainer.best_metric:
        yield CheckResult(
            "WARN", "trainer.best_metric", f"{trainer.best_metric} is never measured, as there are no held-out rows",
            "data.val_files would do",
        )  # fmt: skip


def _batch(run: RunSpec, found: Steps) -> str:
    what = {"pairs": "pairs", "answers": "demonstrations"}.get(run.algorithm.data, "prompts")
    answers = f" x {found.answers // found.prompts} answers" if run.algorithm.sampled else ""
    on = f"{found.processes} processes" if found.processes > 1 else "one process"
    room = f" of at most {run.trainer.max_tokens_per_gpu} tokens" if run.trainer.max_tokens_per_gpu else ""
    updates, parts = _count(found.mini_batches, "update"), _count(found.micro_batches, "micro-batch", "es")
    return f"{found.prompts} {what}{answers} on {on}, {updates} a step, {parts}{room} an update"


def _steps(found: Steps) -> str:
    told = f"{found.steps:,}"
    if found.steps_per_epoch:
        epochs = found.epochs or 0
        told += f" ({_rounded(epochs)} epoch{'' if epochs == 1 else 's'} of {found.steps_per_epoch:,}"
        told += f", {found.left_over:,} rows left over)" if found.left_over else ")"
    if found.validations is not None:
        told += f", {_count(found.validations, 'validation')}"
    return told + (f", {_count(found.checkpoints, 'checkpoint')}" if found.checkpoints is not None else "")


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:.2g}"
