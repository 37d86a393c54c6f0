"""Training, on one page. Everything else in this package serves these lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from launcher import checkpoints
from launcher.engines.torch import measure, streams, world
from launcher.engines.torch.evaluate import Validation
from launcher.engines.torch.policy import Policy
from launcher.engines.torch.save import Written
from launcher.engines.torch.sources import Order
from launcher.events import Alert, Event, Phase, PhaseName, Saved, Step
from launcher.problems import Problems
from launcher.spec.algorithm import Batch
from launcher.spec.run import RunSpec


class Source(Protocol):
    """Where a step's sequences come from: rows of a dataset, or prompts answered by the policy and scored."""

    order: Order

    def batch(self, step: int, clock: measure.Clock) -> Batch: ...


@dataclass(frozen=True)
class Schedule:
    """When what happens. Steps count from 1; `start` is the last step already done."""

    steps: int
    start: int
    test_freq: int
    save_freq: int

    def tests(self, step: int) -> bool:
        return step == self.steps or (self.test_freq > 0 and step % self.test_freq == 0)

    def saves(self, step: int) -> bool:
        return step == self.steps or (self.save_freq > 0 and step % self.save_freq == 0)


class Training:
    """A run in motion. `asked_to_stop` and `save` are the outside's; all else is decided here."""

    def __init__(
        self,
        run: RunSpec,
        policy: Policy,
        source: Source,
        validation: Validation | None,
        schedule: Schedule,
        emit: Callable[[Event], None],
        save: Callable[[int], Written],
        asked_to_stop: Callable[[], bool],
    ) -> None:
        self.run, self.policy, self.source, self.validation = run, policy, source, validation
        self.schedule, self.emit, self.save, self.asked_to_stop = schedule, emit, save, asked_to_stop
        self.clock = measure.Clock()
        self.bad_steps = 0  # in a row
        self.phase = self._phase_before()

    def go(self) -> bool:
        """Train to the last step; False when asked to stop before it."""
        schedule = self.schedule
        if schedule.start == 0 and self.run.trainer.val_before_train and self.validation:
            self.emit(Step(step=0, metrics=self.validate(0) | self.clock.take()))
        elif schedule.start and schedule.saves(schedule.start):  # said again: the log was cut just before it
            self.busy("saving")
            self.emit(Saved(step=schedule.start, path=saved_path(schedule.start)))
        for step in range(schedule.start + 1, schedule.steps + 1):
            if self.stopping():
                return self.leave(step - 1)
            metrics = self.step(step)
            self.emit(Step(step=step, metrics=metrics))
            self.check_finite(step, metrics[f"{self.policy.prefix}/skipped_nonfinite"])
            if schedule.saves(step):
                self.checkpoint(step)
        return True

    def step(self, step: int) -> dict[str, float]:
        """One step of training, and of validation where it is due."""
        torch.manual_seed(streams.dropout(self.run.seed, step, world.RANK))
        trainer, algorithm = self.run.trainer, self.policy.algorithm
        parts = self.run.data.train_batch_size // (trainer.ppo_mini_batch_size or self.run.data.train_batch_size)
        with self.clock("step"):
            self.busy("rollout" if self.policy.sampled else "update")
            batch = self.source.batch(step, self.clock)  # tokens, mask, reward
            on_policy = parts * trainer.ppo_epochs == 1
            batch = self.policy.annotate(batch, self.clock, on_policy=on_policy)  # + log-probabilities as they stand
            with self.clock("adv"):
                batch = algorithm.prepare(batch)  # + advantages
            self.busy("update")
            with self.clock("update_actor"):
                size = len(batch) // parts if self.policy.sampled else len(batch)
                updates = [
                    self.policy.update(part, step) for _ in range(trainer.ppo_epochs) for part in batch.split(size)
                ]
        seconds = self.clock.seconds["step"]
        tokens = int(world.total(batch.length.sum()).item())
        metrics = {"training/global_step": float(step), "training/epoch": float(self.source.order.epoch(step))}
        metrics |= measure.mean_of(updates) | measure.of_batch(batch, self.run.data.max_response_length)
        metrics |= measure.speed(tokens, seconds, self.policy.model.device)
        if self.validation and self.schedule.tests(step):
            metrics |= self.validate(step)
        return metrics | self.clock.take()

    def check_finite(self, step: int, skipped: float) -> None:
        """Tell of updates that were not taken, and end the run when nothing else happens any more."""
        self.bad_steps = self.bad_steps + 1 if skipped else 0
        if not skipped:
            return
        why = f"the gradient of {skipped:.0%} of the updates is not finite; they were skipped and the weights kept"
        self.emit(Alert(step=step, text=why))
        if self.bad_steps >= self.run.trainer.max_bad_steps:
            raise Problems([f"step {step}: {why}, {self.bad_steps} steps in a row; a smaller optim.lr would do"])

    def validate(self, step: int) -> dict[str, float]:
        assert self.validation
        self.busy("validating")
        with self.clock("testing"):
            return self.validation.measure(step)

    def checkpoint(self, step: int) -> None:
        self.busy("saving")
        with self.clock("save_checkpoint"):
            written = self.save(step)
        if written.told:
            self.emit(Alert(step=step, text=f"checkpoint {written.told}; training goes on"))
        if written.done:
            self.emit(Saved(step=step, path=saved_path(step)))

    def leave(self, step: int) -> bool:
        """Asked to stop after `step`: save it unless it is saved already."""
        if step > self.schedule.start and not self.schedule.saves(step):
            self.checkpoint(step)
        return False

    def stopping(self) -> bool:
        """All processes stop at the same step, as soon as one was asked."""
        asked = torch.tensor(float(self.asked_to_stop()), device=self.policy.model.device)
        return world.highest(asked).item() > 0

    def _phase_before(self) -> str:
        """What the run was busy with when `start` was done, so that a resumed log goes on like an unbroken one."""
        if not self.schedule.start:
            return ""
        return "validating" if self.validation and self.schedule.tests(self.schedule.start) else "update"

    def busy(self, phase: PhaseName) -> None:
        if phase != self.phase:
            self.phase = phase
            self.emit(Phase(name=phase))


def saved_path(step: int) -> str:
    return f"checkpoints/{checkpoints.name_of(step)}"
