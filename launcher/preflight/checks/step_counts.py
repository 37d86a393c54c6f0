"""How many steps a run has, and the prompts, sequences, updates and micro-batches of each."""

from __future__ import annotations

from dataclasses import dataclass

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


def count_steps(run: RunSpec, rows: int | None, val_rows: int | None) -> Steps:
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
