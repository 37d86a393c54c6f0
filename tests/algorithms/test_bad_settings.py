"""A value that makes no sense is refused when the settings are made, and the error names it."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.algorithms.dapo import DAPO
from launcher.algorithms.dpo import DPO
from launcher.algorithms.dr_grpo import DrGRPO
from launcher.algorithms.grpo import GRPO
from launcher.algorithms.gspo import GSPO
from launcher.algorithms.gspo_selfplay import GSPOSelfPlay
from launcher.algorithms.ppo import PPO
from launcher.algorithms.sft import SFT
from launcher.core.settings import from_node
from launcher.spec.algorithm import Algorithm

NAN, INF = float("nan"), float("inf")
CLIPS = {
    "clip_ratio_low": [0.0, 1.0, NAN],
    "clip_ratio_high": [0.0, INF],
    "clip_ratio_c": [1.0],
    "entropy_coeff": [-0.1],
}
GROUPS = {"kl_loss_coef": [-0.1], "kl_loss_type": ["k4"], "min_group_std": [-1.0]}
SUMS = {"loss_agg_mode": ["mean"], "loss_scale_factor": [0.0]}
BAD: dict[type[Algorithm], dict[str, list[Any]]] = {
    SFT: {"loss_agg_mode": ["seq-mean-token-sum"]},
    DPO: {"beta": [0.0, "0.1"], "loss_type": ["kto"], "label_smoothing": [-0.1, 0.5], "length_normalised": [1]},
    GRPO: CLIPS | GROUPS | SUMS | {"norm_adv_by_std_in_grpo": ["yes"]},
    DrGRPO: SUMS,
    DAPO: {
        "max_num_gen_batches": [0, 1.5], "max_response_length": [0], "overlong_buffer_len": [-1],
        "overlong_penalty_factor": [-1.0],
    },
    GSPO: {"loss_agg_mode": ["token-mean", "seq-mean-token-sum"]},
    GSPOSelfPlay: {"beta": [0.0], "pair_weight": [0.0], "label_smoothing": [0.5]},
    PPO: CLIPS | SUMS | {
        "gamma": [-0.1, 1.1], "lam": [-0.1, 1.1], "cliprange_value": [0.0], "kl_coef": [-0.1], "kl_penalty": ["abs"],
        "kl_ctrl": ["sometimes"], "target_kl": [0.0], "horizon": [0, 1.5],
    },
}  # fmt: skip
CASES = [(kind, field, value) for kind, bad in BAD.items() for field, values in bad.items() for value in values]


@pytest.mark.parametrize(("kind", "field", "value"), CASES)
def test_a_value_out_of_range(kind: type[Algorithm], field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        kind(**{field: value})
    with pytest.raises(ValueError, match=field):
        from_node(kind, {field: value})


@pytest.mark.parametrize(
    ("kind", "values", "output"),
    [
        (DAPO, {"overlong_buffer_len": 4}, "max_response_length: is not given, and overlong_buffer_len needs"),
        (DAPO, {"overlong_buffer_len": 5, "max_response_length": 4}, "5 of 4 tokens; use at most 4"),
    ],
)
def test_values_that_do_not_go_together(kind: type[Algorithm], values: dict[str, Any], output: str) -> None:
    with pytest.raises(ValueError, match=output):
        kind(**values)
    with pytest.raises(ValueError, match=output):
        from_node(kind, values)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (PPO, "gamma", 0.0),
        (PPO, "gamma", 1.0),
        (PPO, "clip_ratio_c", None),
        (DPO, "label_smoothing", 0.49),
        (DAPO, "max_num_gen_batches", 1),
        (GRPO, "clip_ratio_high", 5.0),
    ],
)
def test_the_edge_of_the_range_is_inside(kind: type[Algorithm], field: str, value: Any) -> None:
    assert getattr(kind(**{field: value}), field) == value
    assert getattr(from_node(kind, {field: value}), field) == value
