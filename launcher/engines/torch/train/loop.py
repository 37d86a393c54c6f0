"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from launcher.core import checkpoints
from launcher.core.events import Alert, Event, Phase, PhaseName, Saved, Step, WeightsMoved
from launcher.core.metrics import better
from launcher.core.problems import Problem, Problems, suggest
from launcher.engines.torch.parallel import world
from launcher.engines.torch.rollout import random_streams
from launcher.engines.torch.train import movement
from launcher.engines.torch.train.answering import PromptAnswerer
from launcher.engines.torch.train.batching import mini_batches
from launcher.engines.torch.train.clock import Clock, perf_metrics
from launcher.engines.torch.train.measure import batch_metrics, distribution, loss_tokens, shows_distributions
from launcher.engines.torch.train.policy import Policy, join_updates
from launcher.engines.torch.train.save import LastValidation, Saver, TrainingPosition
from launcher.engines.torch.train.sources import Demonstrations, Rollouts
from launcher.engines.torch.train.tally import any_scored, mask_unscored, unscored_rows
from launcher.engines.torch.train.tokens import TokenLog
from launcher.engines.torch.train.validation import Validation
from launcher.spec.algorithm import Batch
from launcher.spec.run import RunSpec


@dataclass
class Training:
    """A training, from the step after its `position` to the last; steps count from 1."""

    run: RunSpec
    policy: Policy
    answerer: PromptAnswerer
    source: Demonstrations | Rollouts
    validation: Validation | None
    saver: Saver
    position: TrainingPosition
    steps: int
    emit: Callable[[Event], None]
    asked_to_stop: Callable[[], bool]
    sync: Callable[[], None]
    """Returns when all events are on disk."""
    tokens: TokenLog | None = None  # of rank 0
    clock: Clock = field(default_factory=Clock)
    bad_steps: int = 0  # consecutive

    def __post_init__(self) -> None:
        self.start = self.position.step
        self.phase = ""
        if self.start:  # that in which the step ended, so that a resumed log continues like an uninterrupted one
            self.phase = "validating" if self.validation and self.validates(self.start) else "update"
        self.groups_freq, self.group_characters = group_logging(self.run, self.steps, self.policy.actor.nbytes)

    def validates(self, step: int) -> bool:
        freq = self.run.trainer.test_freq
        return step == self.steps or (freq > 0 and step % freq == 0)

    def saves(self, step: int) -> bool:
        freq = self.run.trainer.save_freq
        return step == self.steps or (freq > 0 and step % freq == 0)

    def train(self) -> bool:
        """Train to the last step; False if a stop was requested before it."""
        if self.start == 0 and self.run.trainer.val_before_train and self.validation:
            self.emit(Step(step=0, metrics=self.validate(0) | self.clock.pop_timings()))
        elif self.start and self.saves(self.start):  # emitted again: the log was cut just before it
            self.start_phase("saving")
            self.measure_movement(self.start)
            self.emit(Saved(step=self.start, path=saved_path(self.start)))
        for step in range(self.start + 1, self.steps + 1):
            if self.should_stop():
                if step - 1 > self.start and not self.saves(step - 1):
                    self.checkpoint(step - 1)
                return False
            metrics, nonfinite_source = self.step(step)
            if nonfinite_source:  # emitted before the step: a resume from this step would not repeat what follows it
                share, why = metrics[f"{self.policy.prefix}/skipped_nonfinite"], nonfinite_reason(nonfinite_source)
                self.alert(step, [f"{share:.0%} of the updates skipped, weights and optimizer kept: {why}"])
            self.emit(Step(step=step, metrics=metrics))
            self.check_finite(step, nonfinite_source)
            if self.saves(step):
                self.checkpoint(step)
        return True

    def step(self, step: int) -> tuple[dict[str, float], str]:
        """One training step, with validation where it is due. Returns metrics and what was not finite, if anything."""
        torch.manual_seed(random_streams.dropout_seed(self.run.seed, step, world.RANK))
        cpu = time.process_time()
        with self.clock("step"):
            self.start_phase("rollout" if self.policy.sampled else "update")
            raw, source_metrics = self.source.batch(step, self.clock)  # tokens, mask, reward
            self.alert(step, self.source.alerts)
            prepared, metrics, nonfinite_source = self.update(raw, step)
        progress = {"training/global_step": float(step), "training/epoch": float(self.source.order.epoch(step))}
        if "agent/prompts" in source_metrics:  # replaced below where the algorithm filters groups
            groups = torch.tensor(len(raw.group[~unscored_rows(raw)].unique()), dtype=torch.float64)
            kept = world.all_reduce_sum(groups.to(self.policy.model.device)).item()
            progress |= {"train/groups_kept": kept, "train/groups_filtered": 0.0}
        metrics = progress | metrics | source_metrics
        metrics |= self.measure(raw, prepared, learnt=nonfinite_source != "reward", cpu=time.process_time() - cpu)
        if self.policy.sampled and shows_distributions(step):
            rewards = prepared.reward[~unscored_rows(raw) & (raw.preference == 0)]
            self.emit_distribution(step, "train/core/reward/distribution", rewards)
        if isinstance(self.source, Rollouts) and (step in (1, self.steps) or step % self.groups_freq == 0):
            self.log_groups(self.source, step, prepared)
        if self.validation and self.validates(step):
            metrics |= self.validate(step)
        return metrics | self.clock.pop_timings(), nonfinite_source

    def measure(self, raw: Batch, prepared: Batch, *, learnt: bool, cpu: float) -> dict[str, float]:
        """Metrics of a step's data, as sampled and as prepared, and of its time and resources."""
        data, eos = self.run.data, self.policy.model.eos
        limits = data.max_response_length, eos, data.max_prompt_length
        metrics = batch_metrics(raw, prepared, self.policy.sampled, *limits)
        counts = torch.stack([raw.length.sum(), loss_tokens(prepared).sum() * learnt])
        tokens, trained = world.all_reduce_sum(counts).tolist()
        metrics["train/loss_tokens"] = float(trained)
        device, processes = self.policy.model.device, self.run.taken.processes
        return metrics | perf_metrics(tokens, self.clock.seconds["step"], cpu, device, processes)

    def update(self, batch: Batch, step: int) -> tuple[Batch, dict[str, float], str]:
        """Update the networks on one batch. Returns it with its advantages and the log-probabilities from before, the
        metrics, and what was not finite."""
        trainer, algorithm = self.run.trainer, self.policy.algorithm
        if self.policy.sampled and not any_scored(batch):
            return batch, {f"{self.policy.prefix}/skipped_nonfinite": 1.0}, "reward"
        batch = mask_unscored(batch)
        batch = self.policy.annotate(batch, self.clock, on_policy=self.run.on_policy)  # + log-probabilities, values
        with self.clock("adv"):
            batch, state = algorithm.prepare(batch, self.position.algorithm_state, world.all_reduce_sum)  # + advantages
        self.start_phase("update")
        batches = mini_batches(batch, self.run.mini_batches)
        updates = [self.policy.update(mini, step, self.clock) for _ in range(trainer.ppo_epochs) for mini in batches]
        mismatch_metrics = self.policy.mismatch.metrics(batch.mask.device) if self.policy.mismatch else {}
        done = join_updates(updates)
        if done.weight_norms is not None:
            self.emit_distribution(step, "train/core/grad_norm/distribution", done.weight_norms, shared=True)
        if not done.nonfinite_source:  # else a non-finite number would stay in the state
            self.position = replace(self.position, algorithm_state=dict(state))
            if not any(name.endswith("/grad_norm") for name in done.metrics):
                self.alert(step, ["nothing to learn from: no token counts in the loss, so no weight moves"])
        if done.log_probs is not None:
            batch = replace(batch, old=done.log_probs)
        return batch, {**done.metrics, **done.largest, **mismatch_metrics, **state}, done.nonfinite_source

    def check_finite(self, step: int, nonfinite_source: str) -> None:
        """Raises `Problems` after `max_bad_steps` consecutive bad steps."""
        self.bad_steps = self.bad_steps + 1 if nonfinite_source else 0
        if self.bad_steps >= self.run.trainer.max_bad_steps:
            got = f"{nonfinite_reason(nonfinite_source)}, {self.bad_steps} steps in a row"
            fix = "use a reward that gives numbers" if nonfinite_source == "reward" else "use a smaller optim.lr"
            if nonfinite_source in _OF_WEIGHTS and not self.policy.model.version:  # no update has changed them
                fix = "use a model whose weights are finite numbers, in a number format (model.dtype) that holds them"
            alerts = self.source.alerts if nonfinite_source == "reward" else ()
            causes = [Problem("", alert) for alert in alerts]
            raise Problems([Problem(f"step {step}", got, fix, "not-finite"), *causes])

    def validate(self, step: int) -> dict[str, float]:
        assert self.validation
        self.start_phase("validating")
        with self.clock("testing"):
            metrics, events = self.validation.measure(step)
        self.alert(step, self.validation.alerts)
        for event in events:
            self.emit(event)
        if self.position.validated.step is None:
            self.check_metric(step, metrics)
        self.position = replace(self.position, validated=LastValidation(step, metrics))
        return metrics

    def check_metric(self, step: int, metrics: dict[str, float]) -> None:
        """Alert once if no checkpoint can be best because `best_metric` is not measured."""
        metric = self.run.trainer.best_metric
        if self.run.trainer.keep_best and metric and (metric not in metrics or better(metric) is None):
            choices = [name for name in metrics if better(name)]
            problem = "has no better direction" if metric in metrics else "is not measured"
            text = f"trainer.best_metric: {metric} {problem}, so no checkpoint is best; {suggest(metric, choices)}"
            self.alert(step, [text])

    def emit_distribution(self, step: int, name: str, values: Tensor, *, shared: bool = False) -> None:
        """Emit how values are spread; before the step's event, as a resume from the step does not measure it again."""
        if spread := distribution(step, name, values, shared):
            self.emit(spread)

    def alert(self, step: int, lines: Sequence[str]) -> None:
        for line in lines:
            self.emit(Alert(step=step, text=line))

    def log_groups(self, source: Rollouts, step: int, prepared: Batch) -> None:
        bounds = self.run.trainer.log_groups, self.group_characters
        for group in source.groups(step, prepared, *bounds):
            self.emit(group)
        try:
            if self.tokens:
                source.write_tokens(self.tokens, step, prepared, *bounds)
        except OSError as error:
            self.alert(step, [f"the tokens of logged answers are not written: {error}; training goes on"])

    def measure_movement(self, step: int) -> None:
        if distance := movement.distances(self.policy.actor):
            self.emit(WeightsMoved(step=step, distance=distance))

    def checkpoint(self, step: int) -> None:
        self.start_phase("saving")
        self.measure_movement(step)
        with self.clock("save_checkpoint"):
            self.sync()  # the events of these steps must be on disk before the checkpoint
            self.position = replace(self.position, step=step, epoch=self.source.order.epoch(step))
            written = self.saver.save(self.position)
        if written.message:
            self.alert(step, [f"checkpoint {written.message}; training goes on"])
        if written.done:
            self.emit(Saved(step=step, path=saved_path(step)))

    def should_stop(self) -> bool:
        """Whether any process was asked to stop, so that all stop at the same step."""
        asked = torch.tensor(float(self.asked_to_stop()), device=self.policy.model.device)
        return world.all_reduce_max(asked).item() > 0

    def start_phase(self, phase: PhaseName) -> None:
        if phase != self.phase:
            self.phase = phase
            self.emit(Phase(name=phase))


_OF_WEIGHTS = ("reference", "old log-probability", "log-probability")  # computed of weights and rows alone


def nonfinite_reason(source: str) -> str:
    return "no group of answers could be scored" if source == "reward" else f"{source} is not finite"


def saved_path(step: int) -> str:
    return f"checkpoints/{checkpoints.name_of(step)}"


def group_logging(run: RunSpec, steps: int, trained_bytes: int) -> tuple[int, int]:
    """Interval of the steps whose groups are logged (1, 2, 5, 10, 20, ...), and characters of each text, so that about
    25 steps are logged and take about 1 % of the run's folder. The folder holds the weights with AdamW's state and some
    lines of each step; an event is written twice."""
    texts = max(run.trainer.log_groups, 1) * (run.sampler.n + 1)
    room = (3 * trained_bytes + 5_000 * steps) // 200 // texts  # bytes of each text over all steps
    times = min(max(room // (80 + min(2 * run.data.max_response_length, 300)), 3), 25)
    freq = next(freq for size in range(19) for digit in (1, 2, 5) if (freq := digit * 10**size) * times >= steps)
    return run.trainer.log_groups_freq or freq, min(max(room // times - 80, 160), 1_000)
