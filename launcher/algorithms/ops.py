"""Tensor operations shared by the algorithms. Shapes as in spec/algorithm.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, Largest, LossMetrics, Mean, no_reduce

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6  # added to a group's standard deviation

# ---- how tokens add up to a loss

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""Mean over all tokens; or over answers of the mean, the sum, or the sum divided by a constant, of an answer's
tokens."""


def per_sequence_weights(mask: Tensor) -> Tensor:
    """[B, T] token weights that give every answer weight 1, whatever its length."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)


def count_answers(mask: Tensor) -> Tensor:
    """[] rows with at least one token."""
    return (mask.sum(-1) > 0).sum()


def token_weights(mode: Aggregation, mask: Tensor, constant: float = 1.0) -> tuple[Tensor, Tensor]:
    """[B, T] weight of each token, and [] the divisor of the weighted sum."""
    if mode == "token-mean":
        return mask, mask.sum()
    if mode == "seq-mean-token-mean":
        return per_sequence_weights(mask), count_answers(mask)
    return (mask if mode == "seq-mean-token-sum" else mask / constant), count_answers(mask)


# ---- groups


def group_index(group: Tensor) -> Tensor:
    """[B] index of each row's group, from 0 without gaps."""
    return group.unique(return_inverse=True)[1]


def _count_groups(index: Tensor) -> int:
    """Number of groups P; 0 in a process without rows."""
    return int(index.max()) + 1 if len(index) else 0


def group_sum(x: Tensor, index: Tensor) -> Tensor:
    """[P] sums of `x` [B] within each group."""
    return x.new_zeros(_count_groups(index)).index_add(0, index, x)


def same_in_group(reward: Tensor, index: Tensor) -> Tensor:
    """[B] bool: every answer to this row's prompt scored the same."""
    empty = reward.new_zeros(_count_groups(index))
    least = empty.scatter_reduce(0, index, reward, "amin", include_self=False)
    most = empty.scatter_reduce(0, index, reward, "amax", include_self=False)
    return (least == most)[index]


def group_centered(reward: Tensor, index: Tensor) -> Tensor:
    """[B] reward minus the group's mean; exactly 0 in a group of equal rewards, without rounding errors."""
    mean = group_sum(reward, index) / group_sum(reward.new_ones(reward.shape), index)
    return (reward - mean[index]).masked_fill(same_in_group(reward, index), 0)


def group_std(reward: Tensor, index: Tensor) -> Tensor:
    """[B] unbiased (n - 1) standard deviation of the reward in this row's group."""
    count = group_sum(reward.new_ones(reward.shape), index)
    variance = group_sum(group_centered(reward, index).square(), index) / (count - 1).clamp(min=1)
    return variance.sqrt()[index]


def group_advantage(reward: Tensor, index: Tensor, scale: bool) -> Tensor:
    """[B] reward relative to the group's mean; in standard deviations (n - 1) if `scale`."""
    centred = group_centered(reward, index)
    return centred / (group_std(reward, index) + EPSILON) if scale else centred


def group_filter_metrics(batch: Batch, made: Batch, kept: Tensor, all_reduce: AllReduce) -> AlgorithmState:
    """Counts of groups of `batch` that are `kept` [B] and filtered; the share of its tokens trained on in `made`."""
    index = group_index(batch.group)
    scored = (batch.mask.sum(-1) > 0).to(batch.mask.dtype)  # answers without a score do not count
    share = scored / group_sum(scored, index).clamp(min=1)[index]  # [B] adds up to 1 for each group
    sums = [(share * kept).sum(), (share * ~kept).sum(), made.mask.sum(), batch.mask.sum()]
    groups, filtered, learnt, tokens = (all_reduce(x).item() for x in sums)
    return {
        "train/groups_kept": float(round(groups)),
        "train/groups_filtered": float(round(filtered)),
        "train/trainable_token_share": learnt / max(tokens, 1),
    }


# ---- policy gradient


def ratio_metrics(log_ratio: Tensor, of_tokens: Tensor, mask: Tensor, most: float | None) -> LossMetrics:
    """Metrics of the ratio between the policy and the one that sampled, before any clip or clamp.

    `log_ratio` [B, T] is the one that the loss uses, `of_tokens` [B, T] that of single tokens; `most` is its clamp.
    """
    tokens, log_ratio = mask.sum(), log_ratio.detach() * mask
    ratio = log_ratio.exp()
    metrics: dict[str, Mean | Largest] = {
        "actor/ratio_mean": Mean((ratio * mask).sum(), tokens),
        "actor/ratio_max": Largest(largest(ratio, mask > 0)),
        "actor/log_ratio_mean": Mean(log_ratio.sum(), tokens),
        "actor/log_ratio_max": Largest(largest(log_ratio.abs(), mask > 0)),
        "actor/seq_log_ratio_max": Largest(largest((of_tokens.detach() * mask).sum(-1).abs(), mask.sum(-1) > 0)),
    }
    if most is not None:
        metrics["actor/log_ratio_clamped"] = Mean((log_ratio.abs() > most).sum(), tokens)
    return metrics


def largest(x: Tensor, where: Tensor) -> Tensor:
    """[] the largest of `x` where `where` is true: inf if one of these is NaN, -inf if there are none."""
    values = x.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(~where, -math.inf)
    return values.max() if values.numel() else values.new_tensor(-math.inf)


def surrogate_loss(
    ratio: Tensor, log_ratio: Tensor, batch: Batch, low: float, high: float, most: float | None
) -> tuple[Tensor, dict[str, Mean | Largest]]:
    """[B, T] PPO's pessimistic loss of each token (arXiv:1707.06347, eq. 7), and how often each clip is active.

    Where the advantage A < 0 it is no larger than `most` * |A| (dual clip, arXiv:1912.09729, eq. 5). `log_ratio` [B, T]
    is that of single tokens, for the KL estimate between old and new policy. Importance weights are applied after all
    clips: they correct for the sampler, not for the update.
    """
    advantage, tokens = batch.advantage, batch.mask.sum()
    unclipped = -ratio * advantage
    loss = -(ratio * advantage).minimum(ratio.clamp(1 - low, 1 + high) * advantage)
    metrics: dict[str, Mean | Largest] = {
        "actor/pg_clipfrac": Mean(((loss > unclipped) * batch.mask).sum(), tokens),
        "actor/ppo_kl": Mean(-(log_ratio.detach() * batch.mask).sum(), tokens),
    }
    if most is not None:
        before, loss = loss, loss.where(advantage >= 0, loss.minimum(-advantage * most))
        metrics["actor/pg_clipfrac_lower"] = Mean(((loss < before) * batch.mask).sum(), tokens)
    return (loss if batch.importance is None else loss * batch.importance), metrics


# ---- distance from the reference: Schulman 2020 (joschu.net/blog/kl-approx.html), r = log(reference / policy)

Estimator = Literal["k1", "k2", "k3"]


def k1(logp: Tensor, reference: Tensor) -> Tensor:
    """[B, T] -r: unbiased, may be negative. Its gradient has mean zero, so as a loss it has no effect on average."""
    return logp - reference


def k2(logp: Tensor, reference: Tensor) -> Tensor:
    """[B, T] r^2 / 2: biased, small variance; its gradient is the KL's."""
    return (reference - logp).square() / 2


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """[B, T] e^r - r - 1: unbiased and never negative."""
    r = reference - logp
    return r.exp() - r - 1


KL: Mapping[Estimator, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


# ---- values


def gae(reward: Tensor, value: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """[B, T] advantages and returns (arXiv:1506.02438, eq. 11 and 16); 0 where the mask is 0.

    The recursion skips masked tokens (a tool's, say), and the value after the last token is 0.
    """
    advantage = value.new_zeros(value.shape)
    next_value = next_advantage = value.new_zeros(value.shape[0])  # [B] V and A of the next token that counts
    for t in range(value.shape[1] - 1, -1, -1):
        counted = mask[:, t] > 0
        delta = reward[:, t] + gamma * next_value - value[:, t]
        next_advantage = (delta + gamma * lam * next_advantage).where(counted, next_advantage)
        next_value = value[:, t].where(counted, next_value)
        advantage[:, t] = next_advantage
    return advantage * mask, (advantage + value) * mask


def whiten(x: Tensor, mask: Tensor, all_reduce: AllReduce = no_reduce) -> Tensor:
    """[B, T] with mean 0 and unbiased variance 1 over the mask of all processes; 0 off the mask."""
    count, summed = all_reduce(mask.sum()), all_reduce((x * mask).sum())
    centred = (x - summed / count.clamp(min=1)) * mask
    variance = all_reduce(centred.square().sum()) / (count - 1).clamp(min=1)
    return centred / (variance + 1e-8).sqrt()


# ---- preference


def log_sigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + e^-x)), numerically stable for large |x|."""
    return -x.new_zeros(()).logaddexp(-x)
