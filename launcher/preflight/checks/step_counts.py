"""How many steps a run has, and the prompts, sequences, updates and micro-batches of each."""

from __future__ import annotations

import math
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
    trainer, batch, processes = run.trainer, run.data.train_batch_size, run.hardware.processes
    per_prompt = run.sampler.n if run.algorithm.sampled else 2 if run.algorithm.data == "pairs" else 1
    minis = batch // (trainer.ppo_mini_batch_size or batch)
    sequences = batch * per_prompt // minis // processes
    per_epoch = rows // batch if rows is not None else None
    steps = trainer.total_training_steps or (per_epoch * trainer.total_epochs if per_epoch is not None else None)
    return Steps(
        rows=rows, val_rows=val_rows, processes=processes, prompts=batch, answers=batch * per_prompt,
        mini_batches=minis * trainer.ppo_epochs,
        micro_batches=_micro_batches(run, sequences, per_prompt),
        steps_per_epoch=per_epoch, steps=steps, left_over=rows % batch if rows is not None else None,
        validations=_validations(run, steps, val_rows), checkpoints=_times(trainer.save_freq, steps),
    )  # fmt: skip


def _micro_batches(run: RunSpec, sequences: int, per_prompt: int) -> int:
    size = run.trainer.micro_batch_size_per_gpu
    if run.algorithm.whole_groups:  # groups are not cut
        size = max(size // per_prompt, 1) * per_prompt
    if room := run.trainer.max_tokens_per_gpu:
        size = max(room // (run.data.max_prompt_length + run.data.max_response_length), 1)
    return max(math.ceil(sequences / size), 1)


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


def largest_batch(run: RunSpec, rows: int) -> int:
    """The largest data.train_batch_size that so many rows fill, and that splits over processes and mini-batches."""
    unit = math.lcm(run.hardware.processes, run.trainer.ppo_mini_batch_size or 1)
    return rows // unit * unit
