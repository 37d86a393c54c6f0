"""Group Relative Policy Optimization (DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

PPO without a critic: an answer's advantage is its reward relative to the other answers of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from launcher.algorithms import ops
from launcher.core.problems import Problem
from launcher.core.settings import Fraction, NonNegative, Positive, ReadOnlyWith, settings
from launcher.spec.algorithm import Algorithm, AlgorithmState, AllReduce, Batch, Loss, Mean, Output, no_reduce

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.spec.algorithm import Need

AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]


VERL = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
}
"""What chooses this loss in verl."""


@settings
class GRPO(Algorithm):
    """PPO without a critic: an answer's advantage is its reward relative to the other answers of its group."""

    clip_ratio_low: Annotated[Fraction, ops.OFF_POLICY] = 0.2
    """The probability ratio of a token is clipped below 1 - clip_ratio_low."""
    clip_ratio_high: Annotated[Positive, ops.OFF_POLICY] = 0.2
    """The probability ratio of a token is clipped above 1 + clip_ratio_high."""
    clip_ratio_c: Annotated[AboveOne | None, ops.OFF_POLICY] = None
    """Dual clip: upper bound of the ratio where the advantage is negative; null disables it."""
    max_log_ratio: Annotated[Positive | None, ops.OFF_POLICY] = None
    """Log-ratios to the sampling policy beyond ± this are clamped, so that no ratio overflows, and such tokens have no
    gradient; null clamps none. The KL to the reference model is not clamped."""
    kl_loss_coef: NonNegative = 0.0
    """Weight of the KL loss towards the reference model (the paper uses 0.04); 0 loads no reference model."""
    kl_loss_type: Annotated[ops.Estimator, ReadOnlyWith("kl_loss_coef", fix="algorithm.kl_loss_coef=0.001")] = "k3"
    """KL estimator: `k3` is never negative, `k2` has the gradient of the KL; the gradient of `k1` has mean zero, so as
    a loss it has no effect on average."""
    entropy_coeff: NonNegative = 0.0
    """Weight of the entropy bonus."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide the advantage by the standard deviation of the group's rewards, so that easy and hard prompts have equal
    weight."""
    min_group_std: NonNegative = 0.0
    """Groups whose rewards have a smaller standard deviation are excluded from the update."""
    loss_agg_mode: ops.Aggregation = "seq-mean-token-mean"
    """How token losses are aggregated; the paper's eq. 3 is `seq-mean-token-mean`: each answer has equal weight,
    whatever its length."""
    loss_scale_factor: Positive | None = None
    """With seq-mean-token-sum-norm: the constant that the sum over an answer's tokens is divided by; null is 1."""

    min_answers = 2
    verl = VERL

    def __post_init__(self) -> None:
        ops.check_constant(self.loss_agg_mode, self.loss_scale_factor)

    def doubts(self) -> Iterator[Problem]:
        yield from ops.clip_doubts(self.clip_ratio_low, self.clip_ratio_high, self.entropy_coeff)
        if self.kl_loss_coef and self.kl_loss_type == "k1":
            got = "the gradient of k1 has mean zero, so this KL loss holds the policy back on no average"
            yield Problem("algorithm.kl_loss_type", got, "use k3 or k2")
        if self.kl_loss_coef > 1:
            got = f"{self.kl_loss_coef} makes the KL loss larger than any advantage, so the policy stays where it is"
            yield Problem("algorithm.kl_loss_coef", got, "use 0.001")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]  # the base class names a constant
        return frozenset({"reference"} if self.kl_loss_coef else ())

    def group_filter(self, batch: Batch) -> Tensor:
        return ops.group_std(batch.reward, ops.group_index(batch.group)) >= self.min_group_std

    def shape_reward(self, batch: Batch) -> Tensor:
        """[B] the reward that is compared."""
        return batch.reward

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        """Eq. 4's advantage, equal for all tokens of an answer."""
        kept = self.group_filter(batch)
        reward, mask = self.shape_reward(batch), batch.mask * kept[:, None]
        advantage = ops.group_advantage(reward, ops.group_index(batch.group), self.norm_adv_by_std_in_grpo)  # [B]
        made = replace(batch, mask=mask, reward=reward, advantage=advantage[:, None] * mask)
        return made, ops.group_filter_metrics(batch, made, kept, all_reduce) if self.filters_groups else {}

    @property
    def filters_groups(self) -> bool:
        """Whether groups may be filtered, so that it is reported how many are trained on."""
        return self.min_group_std > 0

    def loss(self, new: Output, batch: Batch) -> Loss:
        """Eq. 3."""
        weight, units = ops.token_weights(self.loss_agg_mode, batch.mask, self.loss_scale_factor or 1.0)
        log_ratio, of_tokens = self.log_ratio(new, batch), new.logp - batch.old
        surrogate, metrics = ops.surrogate_loss(
            ops.bounded_ratio(log_ratio, self.max_log_ratio), of_tokens, batch,
            self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c,
        )  # fmt: skip
        loss = (surrogate * weight).sum()
        metrics |= ops.ratio_metrics(log_ratio, of_tokens, batch.mask, self.max_log_ratio)
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
