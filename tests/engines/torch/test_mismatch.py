"""How far the sampler is from the trainer, by hand and against plain formulas; and what weights come of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from launcher.core.metrics import described
from launcher.engines.torch.train.measure import Mismatch
from launcher.spec.algorithm import Batch

CPU = torch.device("cpu")


def batch_of(old: list[float], rollout: list[float], mask: list[int]) -> Batch:
    row = [torch.tensor([x], dtype=torch.float64) for x in (old, rollout, mask)]
    tokens = torch.zeros(1, len(old), dtype=torch.long)
    return Batch(tokens=tokens, length=torch.tensor([len(old)]), mask=row[2], old=row[0], rollout=row[1])


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_by_hand() -> None:
    """Two tokens count, a prompt's does not: p 0.5 and 0.2 to the trainer, 0.4 and 0.25 to the sampler."""
    found = Mismatch(None)
    found.record_and_weight(batch_of(logs(0.9, 0.5, 0.2), logs(0.1, 0.4, 0.25), [0, 1, 1]))
    k1 = (math.log(0.4 / 0.5) + math.log(0.25 / 0.2)) / 2
    k3 = ((0.5 / 0.4 - 1 - math.log(0.5 / 0.4)) + (0.2 / 0.25 - 1 - math.log(0.2 / 0.25))) / 2
    expected = {
        "rollout_corr/kl": k1,
        "rollout_corr/k3_kl": k3,
        "training/rollout_probs_diff_max": 0.1,
        "training/rollout_probs_diff_mean": 0.075,
        "training/rollout_probs_diff_std": math.sqrt(2 * 0.025**2),
        "training/rollout_actor_probs_pearson_corr": 1.0,  # two points lie on a line
    }
    assert found.metrics(CPU) == pytest.approx(expected, abs=1e-12)
    assert expected.keys() <= described().keys()


def test_parts_add_up_to_the_whole_and_a_step_begins_anew() -> None:
    draw = torch.Generator().manual_seed(0)
    old, rollout = (-3 * torch.rand(1, 40, generator=draw, dtype=torch.float64) for _ in range(2))
    whole = batch_of(old[0].tolist(), rollout[0].tolist(), [1] * 40)
    single, parts = Mismatch(2.0), Mismatch(2.0)
    single.record_and_weight(whole)
    for start in range(0, 40, 7):
        cut = slice(start, start + 7)
        parts.record_and_weight(batch_of(old[0, cut].tolist(), rollout[0, cut].tolist(), [1] * len(old[0, cut])))
    expected = single.metrics(CPU)
    assert parts.metrics(CPU) == pytest.approx(expected)
    p, q = old.exp(), rollout.exp()
    assert expected["training/rollout_probs_diff_std"] == pytest.approx((p - q).abs().std().item())
    correlation = torch.corrcoef(torch.cat([p, q]))[0, 1].item()
    assert expected["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation)
    assert parts.metrics(CPU) == {}


@pytest.mark.parametrize(
    ("old", "rollout", "weight"),
    [
        (0.5, 0.5, 1.0),  # of one mind
        (0.6, 0.4, 1.5),  # the trainer would have drawn it more often
        (0.2, 0.4, 0.5),  # and less often: never cut from below
        (0.9, 0.1, 2.0),  # nine times, and cut
    ],
)
def test_truncated_importance(old: float, rollout: float, weight: float) -> None:
    """min(p_trainer / p_sampler, cap), of the paper; without a gradient."""
    part = batch_of(logs(old), logs(rollout), [1])
    seen = Mismatch(2.0)
    found = seen.record_and_weight(part).importance
    assert found.item() == pytest.approx(weight) and not found.requires_grad
    told = seen.metrics(CPU)
    assert told["rollout_corr/rollout_is_mean"] == pytest.approx(weight)
    assert told["rollout_corr/rollout_is_ratio_fraction_high"] == float(old / rollout > 2)
    assert Mismatch(None).record_and_weight(part).importance is None


def test_pairs_and_rows_that_count_for_nothing_are_not_seen() -> None:
    part = batch_of(logs(0.5, 0.5), logs(0.1, 0.1), [1, 1])
    seen = Mismatch(None)
    seen.record_and_weight(replace(part, preference=torch.tensor([1])))
    seen.record_and_weight(replace(part, mask=part.mask * 0))
    assert seen.metrics(CPU) == {}


def test_probabilities_that_are_all_one_have_no_correlation() -> None:
    seen = Mismatch(None)
    seen.record_and_weight(batch_of([0.0, 0.0], [0.0, -1e-9], [1, 1]))
    assert "training/rollout_actor_probs_pearson_corr" not in seen.metrics(CPU)
