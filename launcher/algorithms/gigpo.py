"""GiGPO, Group-in-Group Policy Optimization (arXiv:2505.10978): two advantages added, of the whole episode among its
group (eq. 3) and of each turn among all turns of the group that began in an equal state (eq. 7 and 8)."""

from __future__ import annotations

from dataclasses import replace

from launcher.algorithms.grpo import GRPO
from launcher.algorithms.turn_grpo import turn_advantage
from launcher.core.settings import NonNegative, Share, settings
from launcher.spec.algorithm import AlgorithmState, AllReduce, Batch, no_reduce


@settings
class GiGPO(GRPO):
    """GRPO with a second advantage: a turn is compared with those that began in the same state."""

    turn_discount: Share = 0.95
    """Share of the next turn's value that a turn is given (the paper's gamma)."""
    step_advantage_weight: NonNegative = 1.0
    """Weight of the advantage among equal states (the paper's omega); 0 is GRPO."""

    several_turns = True

    def prepare(
        self, batch: Batch, state: AlgorithmState, all_reduce: AllReduce = no_reduce
    ) -> tuple[Batch, AlgorithmState]:
        prepared, state = super().prepare(batch, state, all_reduce)
        scale = self.norm_adv_by_std_in_grpo
        among_states = turn_advantage(batch, batch.state, self.turn_discount, scale) * prepared.mask
        return replace(prepared, advantage=prepared.advantage + self.step_advantage_weight * among_states), state
