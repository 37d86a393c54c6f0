"""The few lines of arithmetic that the algorithms share. Shapes as in spec/algorithm.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6  # added to a group's standard deviation


def per_sequence(mask: Tensor) -> Tensor:
    """[B, T] weights that make every answer count as 1, however long it is."""
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)


def group_advantage(reward: Tensor, group: Tensor, scale: bool) -> Tensor:
    """[B] how much better each answer is than its siblings; in standard deviations (n - 1) if `scale`.

    A group that is all equal has exactly 0: rounding of its mean would otherwise be scaled up.
    """
    index = group.unique(return_inverse=True)[1]  # [B] 0..P-1
    per_group = reward.new_zeros(int(index.max()) + 1)  # [P]
    count = per_group.index_add(0, index, reward.new_ones(reward.shape))
    centred = reward - (per_group.index_add(0, index, reward) / count)[index]
    centred = centred.masked_fill(same_in_group(reward, index), 0)
    if not scale:
        return centred
    variance = per_group.index_add(0, index, centred.square()) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[index] + EPSILON)


def same_in_group(reward: Tensor, group: Tensor) -> Tensor:
    """[B] bool: every answer to this row's prompt scored the same. `group` counts from 0."""
    nothing = reward.new_zeros(int(group.max()) + 1)
    least = nothing.scatter_reduce(0, group, reward, "amin", include_self=False)
    most = nothing.scatter_reduce(0, group, reward, "amax", include_self=False)
    return (least == most)[group]


def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """[B, T] PPO's pessimistic surrogate as a loss (arXiv:1707.06347, eq. 7)."""
    return -(ratio * advantage).minimum(ratio.clamp(1 - low, 1 + high) * advantage)


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """[B, T] unbiased, never negative estimate of KL(policy || reference), Schulman 2020 (kl-approx)."""
    d = reference - logp
    return d.exp() - d - 1
