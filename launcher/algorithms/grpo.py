"""Group Relative Policy Optimization (DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

PPO without a critic: an answer's advantage is how much better it scored than its siblings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.algorithms import ops
from launcher.settings import Fraction, NonNegative, Positive, settings
from launcher.spec.algorithm import Algorithm, Batch, Loss, Output

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.spec.algorithm import Role


@settings
class GRPO(Algorithm):
    clip_ratio_low: Fraction = 0.2
    """A token's ratio stops counting below 1 - clip_ratio_low."""
    clip_ratio_high: Positive = 0.2
    """... and above 1 + clip_ratio_high."""
    kl_loss_coef: NonNegative = 0.0
    """Weight of the pull towards the reference model (the paper takes 0.04); 0 loads no reference model."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide the advantage by the group's standard deviation, so that easy and hard prompts pull alike."""

    min_answers = 2

    @property
    def needs(self) -> frozenset[Role]:  # type: ignore[override]  # the base class names a constant
        return frozenset({"reference"} if self.kl_loss_coef else ())

    def prepare(self, batch: Batch) -> Batch:
        advantage = ops.group_advantage(batch.reward, batch.group, self.norm_adv_by_std_in_grpo)  # [B]
        return replace(batch, advantage=advantage[:, None] * batch.mask)

    def loss(self, new: Output, batch: Batch) -> Loss:
        """Eq. 3: every answer counts as 1, however long (the weights)."""
        ratio, weight = self.ratio(new, batch), self.weight(batch)
        surrogate = ops.clipped(ratio, batch.advantage, self.clip_ratio_low, self.clip_ratio_high)  # [B, T]
        cut = surrogate > -ratio * batch.advantage  # where the clip made a difference
        policy = (surrogate * weight).sum()
        seen = {
            "actor/pg_loss": policy.detach(),
            "actor/pg_clipfrac@token": (cut * batch.mask).sum(),
            "actor/ppo_kl@token": ((batch.old - new.logp.detach()) * batch.mask).sum(),
        }
        if not self.kl_loss_coef:
            return policy, seen
        kl = (ops.k3(new.logp, batch.reference) * weight).sum()
        return policy + self.kl_loss_coef * kl, {**seen, "actor/kl_loss": kl.detach()}

    def ratio(self, new: Output, batch: Batch) -> Tensor:
        """[B, T] probability of each token now, over its probability when sampled."""
        return (new.logp - batch.old).exp()

    def weight(self, batch: Batch) -> Tensor:
        """[B, T] what each token counts for."""
        return ops.per_sequence(batch.mask)

    def units(self, batch: Batch) -> Tensor:
        """[] answers with at least one token."""
        return self.weight(batch).sum()
