"""Other projects' names of our metrics."""

from __future__ import annotations

import pytest

from launcher.core.metric_aliases import canonical, known, spellings
from launcher.core.metrics import catalogue


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("critic/score/mean", "critic/score/mean"), ("reward", "critic/score/mean"),
        ("mean_reward", "critic/score/mean"), ("critic/rewards/mean", "critic/rewards/mean"),
        ("Loss", "train/loss"), ("KL", "actor/kl_loss"),
        ("actor/entropy_loss", "actor/entropy"), ("Grad. Norm", "actor/grad_norm"), ("kl_penalty", "actor/kl_loss"),
        ("timing/gen", "timing_s/gen"), ("val/test_score/openai/gsm8k", "val-core/openai/gsm8k/reward/mean@1"),
        ("val-core/openai/gsm8k/acc/mean@4", "val-core/openai/gsm8k/reward/mean@4"),
        ("of/nobody", "of/nobody"), ("", ""),
    ],
)  # fmt: skip
def test_a_name_is_ours(name, ours):
    assert canonical(name) == ours
    assert known(name) == (name not in ("of/nobody", ""))


def test_a_spelling_stands_for_one_metric():
    every = [name for ours, row in catalogue().items() if row.aliases for name in (ours, *row.aliases)]
    assert len(every) == len(set(every)) and all(canonical(name) in catalogue() for name in every)


def test_spellings_begin_with_ours():
    assert spellings("critic/score/mean")[:2] == ("critic/score/mean", "reward")
    assert spellings("of/nobody") == ("of/nobody",)
