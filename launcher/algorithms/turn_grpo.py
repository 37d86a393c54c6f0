"""Credit for each turn of an episode (arXiv:2505.11821, section 4: MT-GRPO): a turn's advantage is what it contributed,
relative to the same turn of the other episodes of its group.

Its value is the environment's reward for the turn, plus the episode's score at the last turn, plus `turn_discount`
times the value of the next turn (with 1 the sum of all that follows, as in arXiv:2402.03300, section 4.1.3).
"""

from __future__ import annotations

from dataclasses import replace

from launcher.algorithms import ops
from launcher.algorithms.grpo import GRPO
from launcher.core.settings import Share, settings
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, no_reduce


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
        settings = self.turn_discount, self.norm_adv_by_std_in_grpo
        advantage = ops.turn_advantage(batch, ops.turn_numbers(batch), *settings)
        return replace(prepared, advantage=advantage * prepared.mask), state
