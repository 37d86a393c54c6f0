"""Group Relative Policy Optimization (DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

PPO without a critic: an answer's advantage is its reward relative to the other answers of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from launcher.algorithms import ops
from launcher.algorithms.clipped import Clipped
from launcher.core.problems import Problem
from launcher.core.settings import NonNegative, ReadOnlyWith, settings
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, no_reduce

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.spec.algorithm import Need

VERL = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
}
"""The settings that choose this loss in verl."""


@settings
class GRPO(Clipped):
    """Group Relative Policy Optimization: PPO without a critic, an answer's advantage is its reward relative to the
    other answers of its group."""

    kl_loss_coef: NonNegative = 0.0  # type: ignore[misc]  # the base class names a constant
    """Weight of the KL loss towards the reference model (the paper uses 0.04); 0 loads no reference model."""
    kl_loss_type: Annotated[ops.Estimator, ReadOnlyWith("kl_loss_coef", fix="algorithm.kl_loss_coef=0.001")] = "k3"  # type: ignore[misc]
    """KL estimator: `k3` is never negative, `k2` has the gradient of the KL; the gradient of `k1` has mean zero, so as
    a loss it has no effect on average."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide the advantage by the standard deviation of the group's rewards, so that easy and hard prompts have equal
    weight."""
    min_group_std: NonNegative = 0.0
    """Groups whose rewards have a smaller standard deviation are excluded from the update."""
    loss_agg_mode: ops.Aggregation = "seq-mean-token-mean"
    """How token losses are aggregated; the paper's eq. 3 is `seq-mean-token-mean`: each answer has equal weight,
    whatever its length."""

    min_answers = 2
    verl = VERL

    def doubts(self) -> Iterator[Problem]:
        yield from super().doubts()
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
        """[B] the reward that is compared within the group."""
        return batch.reward

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        """Eq. 4's advantage, equal for all tokens of an answer."""
        kept = self.group_filter(batch)
        reward, mask = self.shape_reward(batch), batch.mask * kept[:, None]
        advantage = ops.group_advantage(reward, ops.group_index(batch.group), self.norm_adv_by_std_in_grpo)  # [B]
        prepared = replace(batch, mask=mask, reward=reward, advantage=advantage[:, None] * mask)
        return prepared, ops.group_filter_metrics(batch, prepared, kept, all_reduce) if self.filters_groups else {}

    @property
    def filters_groups(self) -> bool:
        """Whether groups may be filtered, so that it is reported how many are trained on."""
        return self.min_group_std > 0
