"""RunSpec: all settings of a run, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import lcm
from typing import Annotated, Literal

from pydantic import Field

from launcher.core.metrics import HELD_OUT
from launcher.core.problems import InvalidSettings, Problem, conflict
from launcher.core.settings import (
    AtLeastOne,
    Chosen,
    Count,
    Names,
    NonNegative,
    Positive,
    ReadOnlyWith,
    Share,
    settings,
)
from launcher.spec.algorithm import Algorithm
from launcher.spec.cluster import Cluster
from launcher.spec.data import Dataset
from launcher.spec.engine import Engine
from launcher.spec.environment import Environment, Single
from launcher.spec.hardware import PROCESSES, Hardware
from launcher.spec.health import HealthSettings
from launcher.spec.model import Model
from launcher.spec.reward import Reward
from launcher.spec.sampler import SAMPLED, Sampler
from launcher.spec.trackers import CONSOLE, unknown_trackers

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$")]
"""One part of a path: letters, digits, `.`, `_`, `-`; at most 128 characters; not hidden, not `..`."""


Decay = Annotated[float, Field(ge=0, lt=1)]
CRITIC_LR, HIGHEST_LR = 1e-5, 5e-3
SMALL = 256
"""Hidden size up to which a model counts as one for exercises, with a larger usual learning rate."""


@settings
class Optim:
    """AdamW (arXiv:1711.05101)."""

    lr: Positive = 1e-6
    """Learning rate after the warm-up: the loss diverges if it is too large and hardly falls if it is too small.
    Where it is not given: 2e-5 for SFT, 5e-7 for DPO, 1e-6 for all others, ten times that for adapters
    (`model.lora_rank`), and a hundred times for models of a width up to 256, at most 0.005."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square: 0.9 averages over about ten steps, 0.999 over
    about a thousand."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay, times the learning rate; 0 disables it."""
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """`matrices` spares norms and biases, as transformers' Trainer does; `all` does not, as in verl."""
    adam_eps: Positive = 1e-8
    """Added to the square root of the gradient's mean square: it bounds the steps of weights whose gradients are
    tiny."""
    clip_grad: Positive = 1.0
    """Maximum norm of the gradient; the norm before clipping is reported."""
    lr_warmup_steps: Count = 0
    """Steps over which the learning rate rises from 0, the rate of the first."""
    lr_scheduler_type: Literal["constant", "linear", "cosine", "polynomial", "inverse_sqrt", "warmup_stable_decay"] = (
        "constant"
    )
    """Schedule after the warm-up, as in transformers: constant; a linear, cosine or polynomial decay towards
    `min_lr_ratio`, which would be reached one step after the last; 1 / sqrt(step / warm-up), which without a warm-up
    hardly falls for thousands of steps; or constant with a cosine decay over the last `lr_decay_steps`
    (arXiv:2404.06395, section 4)."""
    min_lr_ratio: Annotated[
        Share,
        ReadOnlyWith(
            "lr_scheduler_type", "linear", "cosine", "polynomial", "warmup_stable_decay",
            fix="optim.lr_scheduler_type=cosine",
        ),
    ] = 0.0  # fmt: skip
    """Learning rate at the end of the decay, as a fraction of `lr`; 1 keeps it constant. With 0 a polynomial decay ends
    at a rate of 1e-7, as in transformers."""
    lr_power: Annotated[
        Positive, ReadOnlyWith("lr_scheduler_type", "polynomial", fix="optim.lr_scheduler_type=polynomial")
    ] = 1.0
    """Exponent of the polynomial decay; 1 is linear."""
    lr_decay_steps: Annotated[
        AtLeastOne | None,
        ReadOnlyWith("lr_scheduler_type", "warmup_stable_decay", fix="optim.lr_scheduler_type=warmup_stable_decay"),
    ] = None
    """Steps of the decay at the end; by default a tenth of all."""


@settings
class CriticOptim(Optim):
    """AdamW for the critic, with a larger learning rate than the policy."""

    lr: Positive = CRITIC_LR


@settings
class Critic:
    """The value model (PPO). It starts from the policy's model with a new scalar output layer; all of its weights are
    trained, even where the policy trains adapters (lora_rank)."""

    optim: CriticOptim = Field(default_factory=CriticOptim)
    """The critic's own optimizer."""


@settings
class Trainer:
    """Length of the training, batches of a step, checkpoints and validation."""

    project_name: Name = "rlrun"
    """Folder shared by the runs of one project."""
    experiment_name: Name | None = None
    """The run's folder is run_root/project_name/experiment_name; by default an unused name is generated."""
    run_root: str = "runs"
    """Folder of all projects; for another one, give it to `rlrun runs --root`."""
    total_epochs: Annotated[
        AtLeastOne, ReadOnlyWith("total_training_steps", None, fix="trainer.total_training_steps=null")
    ] = 1
    """Passes over the training rows; `total_training_steps` may end the run earlier."""
    total_training_steps: AtLeastOne | None = None
    """Steps of the whole run; by default those of `total_epochs`."""
    save_freq: int = Field(default=-1, ge=-1)
    """Steps between checkpoints; -1 and 0 save at the end only."""
    test_freq: int = Field(default=-1, ge=-1)
    """Steps between validations; -1 and 0 validate at the end only."""
    val_before_train: bool = True
    """Validate before the first step, as a baseline; it costs one validation."""
    keep_last: AtLeastOne = 3
    """Newest checkpoints that are kept; with 1 there is no older one to resume from if the newest is damaged."""
    keep_best: Count = 1
    """Best checkpoints by `best_metric` that are kept beside the newest ones; 0 keeps none. Only a checkpoint whose
    step was validated counts, so `test_freq` should divide `save_freq`. On a full disk all are deleted but the newest
    verified one and the best one."""
    best_metric: Annotated[str | None, ReadOnlyWith("keep_best", fix="trainer.keep_best=1")] = None
    """Held-out metric that ranks checkpoints, such as `val-core/gsm8k/reward/mean@1` or `val/loss`; by default the mean
    score over the data sources, or the loss where nothing is scored. Of equals the newer is best."""
    max_bad_steps: AtLeastOne = 5
    """Consecutive steps with a non-finite gradient, or without any scorable answer, before the run fails. Such steps do
    not change the weights."""
    max_restarts: Count = 3
    """Consecutive automatic restarts from the newest checkpoint after a transient fault: a lost node, a killed process,
    a broken connection, and once where memory ran out. A new checkpoint resets the count, so a run that makes progress
    may restart any number of times; 0 ends it at the first fault."""
    ppo_mini_batch_size: Annotated[AtLeastOne | None, SAMPLED] = None
    """Prompts of one optimizer update; by default the whole batch, which makes the update on-policy."""
    ppo_epochs: Annotated[AtLeastOne, SAMPLED] = 1
    """Passes over the sampled answers of a step."""
    critic_warmup: Count = 0
    """First steps in which only the critic is trained."""
    micro_batch_size_per_gpu: Annotated[
        AtLeastOne, ReadOnlyWith("max_tokens_per_gpu", None, fix="trainer.max_tokens_per_gpu=null")
    ] = 16
    """Sequences computed at a time in one process; it changes memory and speed, never the result. Where it is not
    given, fewer if memory is too small."""
    max_tokens_per_gpu: AtLeastOne | None = None
    """Tokens computed at a time in one process, instead of a number of sequences: fuller micro-batches, so faster."""
    log_val_generations: Count = 20
    """Held-out answers of each validation that are logged as events; at most 2 where no reward scores them, as in most
    SFT and DPO."""
    keep_eval_logs: AtLeastOne | None = None
    """Newest files in eval_logs/ that are kept, which environment=email_search writes at each validation; by default
    all."""
    log_groups: Annotated[Count, SAMPLED] = 4
    """Prompts of a training step whose answers are logged with their scores and advantages, as events; those that come
    first in the data, so that the same ones come again."""
    log_groups_freq: Annotated[AtLeastOne | None, SAMPLED] = None
    """Steps between those whose groups are logged, beside the first and the last; by default they are logged about 25
    times, and less often where that would take more than 1 % of the run's folder."""
    logger: Names = (CONSOLE,)
    """Where else the metrics are shown, as a list: `tensorboard`, `wandb`, `trackio`, `mlflow`, `swanlab`,
    `file` (a line of JSON a step). Each is a process of its own that reads the run's events: one that is
    down does not slow or stop the run, and `rlrun track` sends the rest. `console`, as in verl's lists, changes
    nothing: its lines are always printed."""


@settings
class RunSpec:
    """Everything about a run."""

    algorithm: Chosen[Algorithm]
    """The training algorithm and the data it needs: answers, pairs of answers, or rewards."""
    model: Chosen[Model]
    """The model to train, and its source."""
    data: Chosen[Dataset]
    """Training and validation rows."""
    reward: Chosen[Reward]
    """Scores answers; SFT and DPO use it for validation only."""
    hardware: Hardware
    """Machines and GPUs of the run."""
    engine: Chosen[Engine]
    """The training backend: its sharding, memory and number formats."""
    sampler: Chosen[Sampler]
    """How answers are sampled, in training and in validation."""
    cluster: Chosen[Cluster]
    """Where the processes run."""
    environment: Chosen[Environment] = Field(default_factory=Single)
    """What answers the policy: nothing, or tools and whatever else gives an episode several turns."""
    optim: Optim = Field(default_factory=Optim)
    """The policy's optimizer."""
    critic: Annotated[Critic, ReadOnlyWith("has_critic", fix="algorithm=ppo", why="the algorithm has no critic")] = (
        Field(default_factory=Critic)
    )
    """The value model; only PPO has one."""
    trainer: Trainer = Field(default_factory=Trainer)
    """Steps, checkpoints, validation and names."""
    health: HealthSettings = Field(default_factory=HealthSettings)
    """What the run is judged by while it trains, and what follows from a critical finding."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random numbers of the run: equal seeds and settings give equal runs."""
    code_dir: str | None = None
    """Folder of the user's own classes, given by --config-dir: importable in every process of the run."""

    def __post_init__(self) -> None:
        by_part = (self.engine.problems(self), self.sampler.problems(self), self.cluster.problems(self.hardware))
        if problems := [*(each for found in by_part for each in found), *self._conflicts()]:
            raise InvalidSettings(problems)

    def _conflicts(self) -> Iterator[Problem]:
        """A problem for each combination of valid values that is invalid together."""
        yield from self._batch_conflicts()
        yield from unknown_trackers(self.trainer.logger)
        name, trainer = type(self.algorithm).__name__, self.trainer
        if trainer.critic_warmup and not self.has_critic:
            got = f"{name} has no critic, got {trainer.critic_warmup}"
            yield conflict("trainer.critic_warmup", got, [0], "algorithm")
        if self.environment.several_turns and self.algorithm.data != "prompts":
            got = f"{type(self.environment).__name__} has several turns, and {name} learns from a dataset"
            yield conflict("environment", got, "use environment=single, or algorithm=grpo", "algorithm")
        if self.algorithm.several_turns and not self.environment.several_turns:
            got = f"{name} compares turns, and {type(self.environment).__name__} has one"
            yield conflict("environment", got, "use environment=python, or algorithm=grpo", "algorithm")
        longest, positions = self.max_sequence_length, self.model.positions
        if positions and longest > positions:
            got = f"prompt and answer may take {longest} tokens, and the model knows {positions} positions"
            fix = f"use a sum of at most {positions}"
            yield conflict("data.max_response_length", got, fix, "data.max_prompt_length", "model")
        needed = longest * (2 if self.algorithm.data == "pairs" else 1)
        if trainer.max_tokens_per_gpu and trainer.max_tokens_per_gpu < needed:
            got = f"{trainer.max_tokens_per_gpu} tokens, and prompt and answer may take {needed}"
            about = ("data.max_prompt_length", "data.max_response_length", "algorithm")
            yield conflict("trainer.max_tokens_per_gpu", got, [needed], *about)
        if trainer.best_metric is not None and not trainer.best_metric.startswith(HELD_OUT):
            got = f"{trainer.best_metric!r} is not of held-out data"
            yield conflict("trainer.best_metric", got, "use one such as val/loss")
        if self.sampler.n < self.algorithm.min_answers:
            got = f"{name} compares at least {self.algorithm.min_answers} answers to a prompt, got {self.sampler.n}"
            yield conflict("sampler.n", got, [8], "algorithm")

    def _batch_conflicts(self) -> Iterator[Problem]:
        """A problem for each batch size that does not split over processes or mini-batches."""
        if not self.engine.splits_prompts:
            return
        batch, processes, mini = self.data.train_batch_size, self.hardware.processes, self.trainer.ppo_mini_batch_size
        if batch % processes:
            sizes = (batch // processes * processes, -(-batch // processes) * processes)
            got = f"{batch} rows do not split over {processes} processes"
            yield conflict("data.train_batch_size", got, [size for size in sizes if size], *PROCESSES)
        if mini and (mini > batch or batch % mini):
            near = min((size for size in range(1, batch + 1) if batch % size == 0), key=lambda size: abs(size - mini))
            got = f"{mini} prompts do not divide data.train_batch_size={batch}"
            yield conflict("trainer.ppo_mini_batch_size", got, [near], "data.train_batch_size")
        elif mini and mini % processes:
            got = f"{mini} prompts do not split over {processes} processes"
            yield conflict("trainer.ppo_mini_batch_size", got, [-(-mini // processes) * processes], *PROCESSES)

    @property
    def has_critic(self) -> bool:
        return "critic" in self.algorithm.needs

    @property
    def sequences_per_prompt(self) -> int:
        """Sequences that are trained on for each prompt (or row) of a step."""
        return self.sampler.n if self.algorithm.sampled else 2 if self.algorithm.data == "pairs" else 1

    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest prompt with the longest answer, within `data.max_length` where that limits both."""
        total, limit = self.data.max_prompt_length + self.data.max_response_length, self.data.max_length
        return total if limit is None or self.algorithm.sampled else min(total, limit)

    @property
    def longest_parts(self) -> tuple[int, int]:
        """Tokens of prompt and of answer in the longest row, with the answer at its own limit."""
        response = min(self.data.max_response_length, self.max_sequence_length - 1)
        return self.max_sequence_length - response, response

    @property
    def shares_length(self) -> bool:
        """Whether prompt and answer have one limit together, `max_sequence_length`, and none each."""
        return self.algorithm.data == "answers" and not self.engine.splits_length

    @property
    def mini_batch_size(self) -> int:
        """Prompts of one optimizer update, over all processes."""
        return self.trainer.ppo_mini_batch_size or self.data.train_batch_size

    @property
    def mini_batches(self) -> int:
        """Mini-batches of a step; each is one optimizer update in each of `ppo_epochs`."""
        return self.data.train_batch_size // self.mini_batch_size

    @property
    def dropout(self) -> bool:
        """Whether weights are trained with dropout."""
        return self.model.dropout if self.model.dropout is not None else self.algorithm.data == "answers"

    @property
    def on_policy(self) -> bool:
        """Whether a step has one update, so that its answers are from exactly the weights that it changes."""
        return self.mini_batches * self.trainer.ppo_epochs == 1

    @property
    def sequences_per_update(self) -> int:
        """Sequences of one optimizer update in one process."""
        return self.mini_batch_size // self.hardware.processes * self.sequences_per_prompt

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update in one process; with `max_tokens_per_gpu` an upper bound."""
        tokens = self.trainer.max_tokens_per_gpu
        size = max(tokens // self.max_sequence_length, 1) if tokens else self.micro_batch_rows
        return max(-(-self.sequences_per_update // size), 1)

    @property
    def micro_batch_rows(self) -> int:
        """Sequences of a micro-batch that is not limited by tokens; groups that the loss compares are not split."""
        size, group = self.trainer.micro_batch_size_per_gpu, self.sequences_per_prompt
        if self.engine.equal_micro_batches:
            rows = max(self.sequences_per_update, 1)
            return next(each for each in range(min(size, rows), 0, -1) if rows % each == 0)
        if self.algorithm.data == "pairs":
            return max(size // group, 1) * group
        return max(size, group) if self.algorithm.whole_groups else size

    def steps_per_epoch(self, rows: int) -> int:
        """The left-over rows are used in other epochs with `data.shuffle`, without it never."""
        return rows // self.data.train_batch_size

    def total_steps(self, rows: int) -> int:
        """Steps of the run with so many training rows."""
        return self.trainer.total_training_steps or self.steps_per_epoch(rows) * self.trainer.total_epochs

    def largest_batch(self, rows: int) -> int:
        """The largest data.train_batch_size, at most `rows`, that splits over processes and mini-batches; 0 where there
        is none."""
        unit = lcm(self.hardware.processes, self.trainer.ppo_mini_batch_size or 1)
        return rows // unit * unit

    @property
    def taken(self) -> Hardware:
        """All hardware of the run: `hardware`, which is for training, and the GPUs that only the sampler uses."""
        training, per_node = self.hardware, self.sampler.n_gpus // self.hardware.nnodes
        if training.is_cpu:
            return replace(training, nproc_per_node=training.processes_per_node + per_node)
        return replace(training, n_gpus_per_node=training.n_gpus_per_node + per_node, nproc_per_node=None)

    @property
    def label(self) -> str:
        """Base of a generated run name."""
        return f"{type(self.algorithm).__name__.lower()}-{self.model.label}"[:100]


def usual_lr(algorithm: Algorithm, model: Model) -> float:
    """Usual learning rate of the policy, at most HIGHEST_LR: ten times that of all weights for adapters
    (`model.lora_rank`)."""
    rate = algorithm.usual_lr * (10 if model.lora_rank else 1) * size_factor(model)
    return float(f"{min(rate, HIGHEST_LR):.3g}")


def usual_critic_lr(model: Model) -> float:
    return float(f"{CRITIC_LR * size_factor(model):.3g}")


def size_factor(model: Model) -> float:
    """Factor of the usual learning rate: 100 for models of a width up to SMALL, else 1."""
    return 100 if model.shape and model.shape.hidden_size <= SMALL else 1
