"""Credit for each turn of an episode (arXiv:2505.11821, section 4: MT-GRPO): a turn's advantage is what it contributed,
relative to the same turn of the other episodes of its group.

Its value is the environment's reward for the turn, plus the episode's score at the last turn, plus `turn_discount`
times the value of the next turn (with 1 the sum of all that follows, as in arXiv:2402.03300, section 4.1.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.algorithms import ops
from launcher.algorithms.grpo import GRPO
from launcher.core.settings import Share, settings
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, no_reduce

if TYPE_CHECKING:
    from torch import Tensor


def turn_numbers(batch: Batch) -> Tensor:
    """[B, N] 0 to N - 1 in each row: the numbers of the turns."""
    return batch.turn_reward.new_ones(batch.turn_reward.shape).cumsum(1).long() - 1


def turn_advantage(batch: Batch, kinds: Tensor, discount: float, scale: bool) -> Tensor:
    """[B, T] for each token the advantage of its turn; 0 where the policy did not write it.

    A turn's value is its reward, plus the episode's score at its last turn, plus `discount` times the value of the next
    turn. Its advantage is relative to the mean of the turns of its group with an equal number in `kinds` [B, N], in
    standard deviations if `scale`; 0 where that is -1, and for a value without another to compare with.
    """
    last, numbers = batch.turn.amax(1, keepdim=True), turn_numbers(batch)
    values = batch.turn_reward + (numbers == last) * batch.reward[:, None]
    for turn in reversed(range(values.shape[1] - 1)):
        values[:, turn] += discount * values[:, turn + 1]
    there = (numbers <= last) & (kinds >= 0)
    count = int(kinds.max()) + 1 if kinds.numel() else 0
    places = ops.group_index(batch.group)[:, None] * count + kinds
    advantage = values.new_zeros(values.shape)
    if there.any():
        advantage[there] = ops.group_advantage(values[there], ops.group_index(places[there]), scale)
    return advantage.gather(1, batch.turn.clamp(min=0)) * (batch.turn >= 0)


@settings
class TurnGRPO(GRPO):
    """GRPO with an advantage for each turn of an episode, by what the turn itself contributed."""

    turn_discount: Share = 0.0
    """Share of the next turn's value that a turn is given: 0 counts its own contribution alone, 1 all that follows."""

    several_turns = True

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        prepared, state = super().prepare(batch, state, all_reduce)
        scale = self.norm_adv_by_std_in_grpo
        advantage = turn_advantage(batch, turn_numbers(batch), self.turn_discount, scale)
        return replace(prepared, advantage=advantage * prepared.mask), state
