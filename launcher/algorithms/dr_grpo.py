"""Dr. GRPO, GRPO done right (arXiv:2503.20783, section 3.2): without the biases of the group's standard deviation and
of answer length.

Dividing by the former gives prompts with nearly equal rewards too much weight, dividing by the latter favours long
wrong answers.
"""

from __future__ import annotations

from launcher.algorithms import ops
from launcher.algorithms.grpo import GRPO, VERL
from launcher.core.settings import settings


@settings
class DrGRPO(GRPO):
    """GRPO Done Right: without the standard deviation; an answer's sum is divided by `loss_scale_factor`, equal for all
    answers."""

    norm_adv_by_std_in_grpo: bool = False
    loss_agg_mode: ops.Aggregation = "seq-mean-token-sum-norm"

    verl = VERL
