"""Policy gradients with a clipped probability ratio (PPO, arXiv:1707.06347): what PPO and GRPO have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from launcher.algorithms import ops
from launcher.core.problems import Problem
from launcher.core.settings import Fraction, NonNegative, Positive, ReadOnlyWith, settings
from launcher.spec.algorithm import Algorithm, Batch, Loss, Mean, Output

if TYPE_CHECKING:
    from torch import Tensor

OFF_POLICY = ReadOnlyWith(
    "run.on_policy", False, fix="trainer.ppo_epochs=2", why="each step is one update, in which all ratios are 1"
)
SUM_NORM = ReadOnlyWith(
    "loss_agg_mode", "seq-mean-token-sum-norm", fix="algorithm.loss_agg_mode=seq-mean-token-sum-norm"
)
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]
LARGEST_BONUS = 0.5  # entropy coefficient: the entropy's gradient is about as large as an advantage's


@settings
class Clipped(Algorithm):
    """A clipped policy gradient; subclasses say how good an answer is (`prepare`)."""

    clip_ratio_low: Annotated[Fraction, OFF_POLICY] = 0.2
    """The probability ratio of a token is clipped below 1 - clip_ratio_low."""
    clip_ratio_high: Annotated[Positive, OFF_POLICY] = 0.2
    """The probability ratio of a token is clipped above 1 + clip_ratio_high."""
    clip_ratio_c: Annotated[AboveOne | None, OFF_POLICY] = None
    """Dual clip (arXiv:1912.09729): upper bound of the ratio where the advantage is negative; null disables it."""
    max_log_ratio: Annotated[Positive | None, OFF_POLICY] = None
    """Log-ratios to the sampling policy beyond ± this are clamped, so that no ratio overflows, and such tokens have no
    gradient; null clamps none. The KL to the reference model is not clamped."""
    entropy_coeff: NonNegative = 0.0
    """Weight of the entropy bonus."""
    loss_agg_mode: ops.Aggregation = "token-mean"
    """How token losses are aggregated: each token has equal weight, or each answer."""
    loss_scale_factor: Annotated[Positive | None, SUM_NORM] = None
    """With seq-mean-token-sum-norm: the constant that the sum over an answer's tokens is divided by; null is 1."""

    kl_loss_coef: ClassVar[float] = 0.0
    """Weight of a KL loss towards the reference model."""
    kl_loss_type: ClassVar[ops.Estimator] = "k3"

    def doubts(self) -> Iterator[Problem]:
        low, high = self.clip_ratio_low, self.clip_ratio_high
        if low > high:
            got = f"clips below at {low} and above at {high}: what is wanted is held back more than what is not"
            fix = f"use algorithm.clip_ratio_low={high} algorithm.clip_ratio_high={low}"
            yield Problem("algorithm.clip_ratio_low", got, fix, about=("algorithm.clip_ratio_high",))
        if self.entropy_coeff > LARGEST_BONUS:
            got = f"{self.entropy_coeff} makes the entropy bonus larger than any advantage, so answers become random"
            yield Problem("algorithm.entropy_coeff", got, "use 0.001")

    def loss(self, new: Output, batch: Batch) -> Loss:
        """The clipped surrogate with its KL loss and entropy bonus, which add up over tokens alike."""
        weight, units = ops.token_weights(self.loss_agg_mode, batch.mask, self.loss_scale_factor or 1.0)
        log_ratio, token_log_ratio, cap = self.log_ratio(new, batch), new.logp - batch.old, self.max_log_ratio
        ratio = (log_ratio if cap is None else log_ratio.clamp(-cap, cap)).exp()  # no gradient where it is clamped
        clips = self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c
        surrogate, metrics = ops.surrogate_loss(ratio, token_log_ratio, batch, *clips)
        loss = (surrogate * weight).sum()
        metrics |= ops.ratio_metrics(log_ratio, token_log_ratio, batch.mask, cap)
        metrics["actor/pg_loss"] = Mean(loss.detach(), units)
        if self.kl_loss_coef:
            kl = (ops.KL[self.kl_loss_type](new.logp, batch.reference) * weight).sum()
            loss = loss + self.kl_loss_coef * kl
            metrics["actor/kl_loss"] = Mean(kl.detach(), units)
        if self.entropy_coeff:
            loss = loss - self.entropy_coeff * (new.entropy * weight).sum()
        return loss, metrics

    def log_ratio(self, new: Output, batch: Batch) -> Tensor:
        """[B, T] log of the probability of each token now, over its probability when sampled."""
        return new.logp - batch.old

    def units(self, batch: Batch) -> Tensor:
        return ops.token_weights(self.loss_agg_mode, batch.mask)[1]
