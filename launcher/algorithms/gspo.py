"""Group Sequence Policy Optimization (arXiv:2507.18071): GRPO with one probability ratio per answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from launcher.algorithms import ops
from launcher.algorithms.clipped import OFF_POLICY
from launcher.algorithms.grpo import GRPO, VERL
from launcher.core.problems import Problem
from launcher.core.settings import Fraction, Positive, settings
from launcher.spec.algorithm import Batch, Output

if TYPE_CHECKING:
    from torch import Tensor

WIDEST = 0.02  # range of the ratio of a whole answer: about fifty times the paper's


@settings
class GSPO(GRPO):
    """Group Sequence Policy Optimization: clips one probability ratio per answer, not per token, in a range several
    hundred times narrower than GRPO's."""

    clip_ratio_low: Annotated[Fraction, OFF_POLICY] = 3e-4
    clip_ratio_high: Annotated[Positive, OFF_POLICY] = 4e-4
    loss_agg_mode: Literal["seq-mean-token-mean"] = "seq-mean-token-mean"

    verl = VERL | {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}

    def doubts(self) -> Iterator[Problem]:
        yield from super().doubts()
        if max(self.clip_ratio_low, self.clip_ratio_high) > WIDEST:
            low, high = 1 - self.clip_ratio_low, 1 + self.clip_ratio_high
            got = f"the ratio of a whole answer hardly ever leaves {low:g} to {high:g}, so nothing is clipped"
            fix = "use algorithm.clip_ratio_low=0.0003 algorithm.clip_ratio_high=0.0004"
            yield Problem("algorithm.clip_ratio_high", got, fix, about=("algorithm.clip_ratio_low",))

    def log_ratio(self, new: Output, batch: Batch) -> Tensor:
        """[B, T] log of eq. 7: the mean over the answer's tokens, with its gradient distributed over them (eq. 14)."""
        mean = ((new.logp - batch.old) * ops.per_sequence_weights(batch.mask)).sum(-1, keepdim=True)  # [B, 1]
        return mean.detach() + new.logp - new.logp.detach()
