"""Dr. GRPO, GRPO done right (arXiv:2503.20783, section 3.2): neither the group's spread nor an answer's length counts.

Dividing by the one favours prompts that are nearly solved or nearly hopeless, by the other long wrong answers.
"""

from __future__ import annotations

from launcher.algorithms import ops
from launcher.algorithms.grpo import GRPO
from launcher.core.settings import settings


@settings
class DrGRPO(GRPO):
    """GRPO without the standard deviation; an answer's sum is divided by `loss_scale_factor`, equal for all answers."""

    norm_adv_by_std_in_grpo: bool = False
    loss_agg_mode: ops.Aggregation = "seq-mean-token-sum-norm"
