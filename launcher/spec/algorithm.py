"""What an algorithm is: settings, and arithmetic on tensors. It owns no model, device, file or clock.

Shapes, used in every file that speaks of batches:
    B  sequences in the batch      T  tokens in a sequence (prompt + answer, right-padded)
    P  prompts                     G  answers to one prompt
Position t of a [B, T] tensor speaks of token t, given the tokens before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["reference", "critic"]
Kind = Literal["answers", "pairs", "prompts"]

ABSENT: Any = None  # nobody has filled this field; `needs` and `data` say who will


@dataclass(frozen=True)
class Batch:
    """What is fixed before the gradient step. A field is ABSENT when the algorithm does not need it."""

    tokens: Tensor  # [B, T] int64
    length: Tensor  # [B] int64, prompt + answer; padding begins there
    mask: Tensor  # [B, T] 1 where the loss looks: the answer's tokens; 0 on prompt and padding
    group: Tensor = ABSENT  # [B] int64, equal for the answers to one prompt
    old: Tensor = ABSENT  # [B, T] log-probability when it was sampled
    reference: Tensor = ABSENT  # [B, T] log-probability under the frozen model
    reward: Tensor = ABSENT  # [B] score of the answer
    advantage: Tensor = ABSENT  # [B, T] filled in by `prepare`

    def __len__(self) -> int:
        return len(self.length)

    def rows(self, which: Any) -> Batch:
        """The rows that `which` (a slice or an index tensor) selects."""
        held = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return Batch(**{name: value[which] for name, value in held.items()})

    def split(self, size: int) -> Iterator[Batch]:
        """Consecutive parts of at most `size` rows."""
        for start in range(0, len(self), size):
            yield self.rows(slice(start, start + size))


@dataclass(frozen=True)
class Output:
    """What carries gradient."""

    logp: Tensor  # [B, T] log-probability of token t; 0 where the mask is 0


Loss = tuple["Tensor", Mapping[str, "Tensor"]]


class Algorithm(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/algorithm/<name>.yaml."""

    needs: ClassVar[frozenset[Role]] = frozenset()
    data: ClassVar[Kind] = "prompts"
    min_answers: ClassVar[int] = 1
    """Answers to one prompt (sampler.n) without which it cannot learn."""

    def prepare(self, batch: Batch) -> Batch:
        """Fill in advantages. Runs once per step over whole groups, without gradient."""
        return batch

    @abstractmethod
    def loss(self, new: Output, batch: Batch) -> Loss:
        """The SUM of the loss over `units`, and token sums to report. The engine divides.

        A reported name ending in `@token` is divided by the answer tokens, any other by `units`.
        """

    def units(self, batch: Batch) -> Tensor:
        """[] what the sum is divided by, after adding up all micro-batches of all processes."""
        return batch.mask.sum()
