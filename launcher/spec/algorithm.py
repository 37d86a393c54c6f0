"""Interface of algorithms: settings, and computations on tensors. They own no model, device, file or clock.

Shapes, used in every file that handles batches:
    B  sequences in the batch      T  tokens in a sequence (prompt + answer, right-padded)
    P  prompts                     G  answers to one prompt
    N  turns of the policy in the longest episode
Position t of a [B, T] tensor belongs to token t, given the tokens before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.core.problems import Problem

Need = Literal["reference", "critic", "old"]
"""What must be computed before the update: log-probabilities of the frozen model, values of the critic, and
log-probabilities of the policy itself even where the update is on-policy."""
Kind = Literal["answers", "pairs", "prompts", "mixed"]
"""Demonstrations; chosen and rejected answers; prompts to be answered; pairs and prompts in one file."""

ABSENT: Any = None  # an unfilled field; `needs` and `data` decide which are filled


@dataclass(frozen=True)
class Batch:
    """Constants of a gradient step. A field is ABSENT when the algorithm does not need it."""

    tokens: Tensor  # [B, T] int64
    length: Tensor  # [B] int64, prompt + answer; padding begins there
    mask: Tensor  # [B, T] 1 where the loss looks: the answer's tokens; 0 on prompt and padding
    group: Tensor = ABSENT  # [B] int64, equal for the answers to one prompt
    preference: Tensor = ABSENT  # [B] int64, 1 the chosen answer of a pair, -1 the rejected one, 0 a sampled answer
    rollout: Tensor = ABSENT  # [B, T] log-probability by the program that sampled it, where that is not the trainer
    old: Tensor = ABSENT  # [B, T] log-probability when it was sampled, by the trainer
    importance: Tensor = ABSENT  # [B, T] weight of its policy loss, so that it does not matter which program sampled
    reference: Tensor = ABSENT  # [B, T] log-probability under the frozen model
    value: Tensor = ABSENT  # [B, T] what the critic expected before token t was chosen
    reward: Tensor = ABSENT  # [B] score of the answer
    turn: Tensor = ABSENT  # [B, T] int64 number of the policy's turn, from 0; -1 elsewhere. With an environment only
    turn_reward: Tensor = ABSENT  # [B, N] what the environment gave for each turn, 0 where there is no such turn
    state: Tensor = (
        ABSENT  # [B, N] int64 equal where turns began in equal states of the environment; -1 unknown, or none
    )
    advantage: Tensor = ABSENT  # [B, T] filled in by `prepare`
    target: Tensor = ABSENT  # [B, T] filled in by `prepare`: the return that the critic should have expected

    def __len__(self) -> int:
        return len(self.length)

    def rows(self, which: Any) -> Batch:
        """The rows that `which` (a slice, an index tensor or a bool tensor) selects."""
        filled = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return Batch(**{name: value[which] for name, value in filled.items()})


@dataclass(frozen=True)
class Output:
    """Tensors that carry gradients."""

    logp: Tensor  # [B, T] log-probability of token t; 0 where the mask is 0
    entropy: Tensor = ABSENT  # [B, T] entropy of the distribution that token t was drawn from, in nats; likewise


class Mean(NamedTuple):
    """A metric as sum and count, which add up over micro-batches and processes."""

    total: Tensor  # []
    count: Tensor  # type: ignore[assignment]  # [] (hides tuple.count)


class Largest(NamedTuple):
    """A metric as its largest value over micro-batches, processes and the updates of a step."""

    value: Tensor  # []; -inf where there is nothing to measure


LossMetrics = Mapping[str, Mean | Largest]
Loss = tuple["Tensor", LossMetrics]
AlgorithmState = Mapping[str, float]
AllReduce = Callable[["Tensor"], "Tensor"]


def no_reduce(x: Tensor) -> Tensor:
    """An `AllReduce` of a single process: the sum over all processes is `x` itself."""
    return x


class Algorithm(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/algorithm/<name>.yaml."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    data: ClassVar[Kind] = "prompts"
    min_answers: ClassVar[int] = 1
    """Minimum number of answers per prompt (sampler.n)."""
    whole_groups: ClassVar[bool] = False
    """The loss compares rows of a group, so they must be computed in one micro-batch."""
    several_turns: ClassVar[bool] = False
    """The algorithm compares turns of episodes, so it needs an environment with several turns."""
    usual_lr: ClassVar[float] = 1e-6
    """Learning rate with which all weights of a language model are usually trained."""
    verl: ClassVar[Mapping[str, object] | None] = None
    """The settings with which the engine verl computes this loss. Each class declares its own: an inherited value is
    ignored, as a subclass changes the loss."""
    min_group_std: float = 0.0
    """Groups whose rewards have a smaller standard deviation are excluded from the update."""
    entropy_coeff: float = 0.0
    """Weight of an entropy bonus. Where it is not 0, the loss passes gradients through `Output.entropy`, which takes
    memory: a bonus under another name is a property of this one."""
    max_num_gen_batches: int = 1
    """Sampling rounds of a step, repeated until it is full of groups that pass `group_filter`."""

    @property
    def sampled(self) -> bool:
        """Whether it trains on answers sampled from the policy."""
        return self.data in ("prompts", "mixed")

    @property
    def has_value_loss(self) -> bool:
        """Whether it defines a loss for a critic."""
        return type(self).value_loss is not Algorithm.value_loss

    def doubts(self) -> Iterator[Problem]:
        """A problem for each valid value with which hardly anything can be learnt; a plan warns of them."""
        return iter(())

    def group_filter(self, batch: Batch) -> Tensor:
        """[B] bool: rows of groups to train on, by their rewards."""
        return batch.group >= 0

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        """Compute advantages. Runs once per step over whole groups, without gradient.

        `state` is the state returned by the previous step; it is reported, and saved in checkpoints. `all_reduce` sums
        a tensor over all processes, each of which holds a part of the step.
        """
        return batch, {}

    @abstractmethod
    def loss(self, new: Output, batch: Batch) -> Loss:
        """[] the SUM of the loss over `units`, and the metrics. The engine divides."""

    def value_loss(self, value: Tensor, batch: Batch) -> Loss:
        """[] the SUM over answer tokens of the loss of the critic's `value` [B, T], and the metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no critic")

    def units(self, batch: Batch) -> Tensor:
        """[] divisor of the loss, after summing over all micro-batches of all processes."""
        return batch.mask.sum()
