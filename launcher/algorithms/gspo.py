"""Group Sequence Policy Optimization (arXiv:2507.18071): GRPO with one probability ratio per answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from launcher.algorithms import ops
from launcher.algorithms.grpo import GRPO
from launcher.core.settings import Fraction, Positive, settings
from launcher.spec.algorithm import Batch, Output

if TYPE_CHECKING:
    from torch import Tensor


@settings
class GSPO(GRPO):
    """Clips one probability ratio per answer, not per token, in a range several hundred times narrower than GRPO's."""

    clip_ratio_low: Fraction = 3e-4
    clip_ratio_high: Positive = 4e-4
    loss_agg_mode: Literal["seq-mean-token-mean"] = "seq-mean-token-mean"

    def ratio(self, new: Output, batch: Batch) -> Tensor:
        """[B, T] eq. 7: the geometric mean over the answer's tokens, with its gradient distributed over them (eq.
        14)."""
        log_ratio = ((new.logp - batch.old) * ops.per_sequence_weights(batch.mask)).sum(-1, keepdim=True)  # [B, 1]
        return (log_ratio.detach() + new.logp - new.logp.detach()).exp()
