"""What a step tells of its reward."""

from __future__ import annotations

import math

from launcher.engines.torch.train.measure import Tally
from launcher.spec.reward import Scores


def test_parts_are_told_of_the_groups_that_are_learnt_from() -> None:
    """Otherwise the mean of the parts is of other answers than the mean of their sum."""
    tally = Tally()
    parts = {"form": [9.0, 9.0, 0.0, 1.0]}
    scores = Scores([1.0, math.nan, 0.0, 1.0], parts, ["", "late", "", ""])
    tally.note([0, 0, 1, 1], ["a:1"] * 2 + ["a:2"] * 2, scores)
    metrics, lines = tally.summary()
    assert metrics == {"critic/score/form/mean": 0.5, "reward/faults": 1.0}
    assert lines == ["a:1: late; 1 of 4 answers are without a score, their groups left out"]
