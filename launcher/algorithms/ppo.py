"""Proximal Policy Optimization (arXiv:1707.06347) with a critic, as InstructGPT (arXiv:2203.02155) uses it.

The reward of an answer is given at its last token; a KL penalty towards the reference at every token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from launcher.algorithms import ops
from launcher.algorithms.clipped import OFF_POLICY, AboveOne, Clipped
from launcher.core.problems import Problem
from launcher.core.settings import AtLeastOne, NonNegative, Positive, ReadOnlyWith, Share, settings
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, Loss, Mean, no_reduce

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.spec.algorithm import Need

PENALTY = "actor/reward_kl_penalty"
COEFFICIENT = "actor/reward_kl_penalty_coeff"
WITH_KL = ReadOnlyWith("kl_coef", fix="algorithm.kl_coef=0.001")
ADAPTIVE = ReadOnlyWith("kl_ctrl", "adaptive", fix="algorithm.kl_ctrl=adaptive")


@settings
class PPO(Clipped):
    """Proximal Policy Optimization: clipped policy gradient with a critic as baseline."""

    clip_ratio_c: Annotated[AboveOne | None, OFF_POLICY] = 3.0
    gamma: Share = 1.0
    """Discount factor per token."""
    lam: Share = 1.0
    """GAE's lambda (arXiv:1506.02438): 1 uses the observed rewards, 0 the critic's one-step estimate."""
    cliprange_value: Positive = 0.5
    """The new value is clipped to within this distance of the old one."""
    kl_coef: NonNegative = 0.001
    """Coefficient of the KL penalty that is subtracted from each token's reward; 0 loads no reference model."""
    kl_penalty: Annotated[ops.Estimator, WITH_KL] = "k1"
    """KL estimator: `k1` may be negative, `k3` never is, `k2` has the smallest variance but is biased."""
    kl_ctrl: Annotated[Literal["fixed", "adaptive"], WITH_KL] = "fixed"
    """`adaptive` adjusts the coefficient until the KL is `target_kl` (arXiv:1909.08593, section 2.2)."""
    target_kl: Annotated[Positive, ADAPTIVE] = 0.1
    """Target of the adaptive coefficient: nats per token, not per answer."""
    horizon: Annotated[AtLeastOne, ADAPTIVE] = 10_000
    """Answers over which the adaptive coefficient changes."""
    verl = {
        "algorithm.adv_estimator": "gae",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
        "actor_rollout_ref.actor.use_kl_loss": False,
    }

    def doubts(self) -> Iterator[Problem]:
        yield from super().doubts()
        if (remaining := self.gamma**100) < 0.5:
            got = f"{self.gamma:g} leaves {remaining:.0%} of the score 100 tokens before an answer's end"
            yield Problem("algorithm.gamma", got, "use 1")
        if self.kl_coef > 1:
            got = f"{self.kl_coef} makes the KL penalty larger than any reward, so the policy stays where it is"
            yield Problem("algorithm.kl_coef", got, "use 0.001")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]  # the base class names a constant
        return frozenset({"critic", "reference", "old"} if self.kl_coef else {"critic"})

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        """Advantages [B, T], whitened over the step, and returns [B, T], the critic's targets."""
        last = batch.mask * (batch.mask.cumsum(-1) == batch.mask.sum(-1, keepdim=True))  # [B, T] an answer's last token
        reward, state = self._penalize_kl(batch, last * batch.reward[:, None], state, all_reduce)
        advantage, target = ops.gae(reward, batch.value.to(reward.dtype), batch.mask, self.gamma, self.lam)
        whitened = ops.whiten(advantage, batch.mask, all_reduce)
        return replace(batch, advantage=whitened, target=target, reward=reward.sum(-1)), state

    def _penalize_kl(
        self, batch: Batch, reward: Tensor, state: AlgorithmState, all_reduce: AllReduce
    ) -> tuple[Tensor, AlgorithmState]:
        """[B, T] the reward minus the KL penalty of each token."""
        if not self.kl_coef:
            return reward, {}
        kl = ops.KL[self.kl_penalty](batch.old, batch.reference) * batch.mask
        answers = all_reduce(ops.count_answers(batch.mask)).item()
        mean = all_reduce((kl.sum(-1) / batch.mask.sum(-1).clamp(min=1)).sum()).item() / max(answers, 1)
        coefficient = self._adapt_coefficient(state, answers)
        return reward - coefficient * kl, {PENALTY: mean, COEFFICIENT: coefficient}

    def _adapt_coefficient(self, state: AlgorithmState, answers: float) -> float:
        """The KL coefficient, adjusted by the last step's distance from the target."""
        if self.kl_ctrl == "fixed" or COEFFICIENT not in state:
            return self.kl_coef
        error = min(max(state[PENALTY] / self.target_kl - 1, -0.2), 0.2)
        return state[COEFFICIENT] * (1 + error * answers / self.horizon)

    def value_loss(self, value: Tensor, batch: Batch) -> Loss:
        """Half the squared error of the value, or of the value clipped to near the old one, whichever is larger."""
        clipped = batch.value + (value - batch.value).clamp(-self.cliprange_value, self.cliprange_value)
        error, clipped_error = (value - batch.target).square(), (clipped - batch.target).square()
        loss, tokens = (error.maximum(clipped_error) * batch.mask).sum() / 2, batch.mask.sum()
        return loss, {
            "critic/vf_loss": Mean(loss.detach(), tokens),
            "critic/vf_clipfrac": Mean(((clipped_error > error) * batch.mask).sum(), tokens),
            "critic/vpred_mean": Mean((value.detach() * batch.mask).sum(), tokens),
        }
