"""A value that makes no sense is refused when the settings are made, and the error names it.

The range of each setting is in docs/settings.md, which is made from the classes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.ppo import PPO
from launcher.core.settings import from_node
from launcher.spec.algorithm import Algorithm


@pytest.mark.parametrize(
    ("kind", "values", "output"),
    [
        (GRPO, {"clip_ratio_low": math.nan}, "clip_ratio_low"),
        (PPO, {"horizon": 1.5}, "horizon"),
        (DPO, {"beta": "0.1"}, "beta"),
        (GSPO, {"loss_agg_mode": "token-mean"}, "loss_agg_mode"),  # of which GRPO knows more
        (DAPO, {"overlong_buffer_len": 4}, "max_response_length: is not given, and overlong_buffer_len needs"),
        (DAPO, {"overlong_buffer_len": 5, "max_response_length": 4}, "5 of 4 tokens; use at most 4"),
    ],
)
def test_a_value_out_of_range(kind: type[Algorithm], values: dict[str, Any], output: str) -> None:
    with pytest.raises(ValueError, match=output):
        kind(**values)
    with pytest.raises(ValueError, match=output):
        from_node(kind, values)
