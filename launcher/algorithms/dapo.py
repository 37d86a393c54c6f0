"""Decoupled Clip and Dynamic sAmpling Policy Optimization (DAPO, arXiv:2503.14476).

GRPO with four changes: a larger upper clip range (eq. 10), token-mean loss (eq. 12), only groups with both right and
wrong answers (eq. 11), and a soft penalty for overlong answers (eq. 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from launcher.algorithms import ops
from launcher.algorithms.clipped import OFF_POLICY
from launcher.algorithms.grpo import GRPO, VERL
from launcher.core.problems import InvalidSettings, Problem
from launcher.core.settings import AtLeastOne, Count, NonNegative, Positive, ReadOnlyWith, settings
from launcher.spec.algorithm import Batch

if TYPE_CHECKING:
    from torch import Tensor


@settings
class DAPO(GRPO):
    """Decoupled Clip and Dynamic sAmpling Policy Optimization: GRPO with a larger upper clip range, token-mean loss,
    and only groups with both right and wrong answers."""

    clip_ratio_high: Annotated[Positive, OFF_POLICY] = 0.28
    loss_agg_mode: ops.Aggregation = "token-mean"
    max_num_gen_batches: AtLeastOne = 10
    """Sampling rounds of a step, repeated until its batch is full of groups with both right and wrong answers; 1 never
    samples again. Unfilled places are excluded from the update."""
    max_response_length: AtLeastOne | None = None
    """Tokens of the longest answer, from which the length penalty is computed."""
    overlong_buffer_len: Count = 0
    """Tokens before the maximum length over which the length penalty rises from 0; 0 disables the penalty."""
    overlong_penalty_factor: Annotated[
        NonNegative, ReadOnlyWith("overlong_buffer_len", fix="algorithm.overlong_buffer_len=256")
    ] = 1.0
    """Length penalty of the longest answer."""

    verl = VERL | {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"}

    def __post_init__(self) -> None:
        longest = self.max_response_length
        if self.overlong_buffer_len and longest is None:
            got, fix = "is not given, and overlong_buffer_len needs it", "use that of data.max_response_length"
            raise InvalidSettings(Problem("max_response_length", got, fix, about=("algorithm.overlong_buffer_len",)))
        if longest is not None and self.overlong_buffer_len > longest:
            got, about = f"is {self.overlong_buffer_len} of {longest} tokens", ("algorithm.max_response_length",)
            raise InvalidSettings(Problem("overlong_buffer_len", got, f"use at most {longest}", about=about))

    def group_filter(self, batch: Batch) -> Tensor:
        """Eq. 11: groups with both right and wrong answers, judged by the score without the length penalty."""
        return super().group_filter(batch) & ~ops.same_in_group(batch.reward, ops.group_index(batch.group))

    def shape_reward(self, batch: Batch) -> Tensor:
        """Eq. 13."""
        longest, buffer = self.max_response_length, self.overlong_buffer_len
        if not longest or not buffer:
            return batch.reward
        over = ((batch.mask.sum(-1) - (longest - buffer)) / buffer).clamp(0, 1)  # [B]
        return batch.reward - self.overlong_penalty_factor * over

    @property
    def filters_groups(self) -> bool:
        return True
