"""How values are spread: standard deviations, explained variance, shares and distributions, over all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.core.events import from_line, to_line
from launcher.engines.torch.train import measure
from launcher.engines.torch.train.batching import Limits
from launcher.engines.torch.train.measure import Clock, Sums
from launcher.spec.algorithm import Batch, Largest, Mean

f64 = torch.float64


@pytest.fixture
def step(jobs: ModuleType) -> tuple[Batch, Batch]:
    """A step of PPO, as it was sampled and with its advantages."""
    policy = jobs.policy_for("ppo", "float64", Limits(5))
    raw = jobs.rollouts_of(policy.model, 1)
    return raw, policy.algorithm.prepare(policy.annotate(raw, Clock(), on_policy=False), {})[0]


def test_spreads_are_torchs(step: tuple[Batch, Batch]) -> None:
    """S4-09, S2-14, S2-25: what tells answers apart is the spread; S2-01, S2-30: the share of positive rewards."""
    raw, made = step
    found, seen = measure.batch_metrics(raw, made, True, 6), made.mask > 0
    expected = {
        "critic/score/std": raw.reward.std(),
        "critic/rewards/std": made.reward.std(),
        "critic/advantages/std": made.advantage[seen].std(),
        "critic/vf_explained_var": 1 - (made.target - made.value)[seen].var() / made.target[seen].var(),
        "critic/rewards/positive_share": (made.reward > 0).double().mean(),
        "critic/rewards/max": made.reward.max(),
        "critic/rewards/min": made.reward.min(),
        "response_length/max": raw.mask.sum(1).max(),
        "response_length/min": raw.mask.sum(1).min(),
        "prompt_length/max": (raw.length - raw.mask.sum(1)).max(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, rel=1e-12
    )
    assert not {"critic/rewards/positive_share/mean", "critic/values/std"} & set(found)


@pytest.mark.parametrize(
    ("reward", "std", "positive"),
    [
        ([0.1] * 24, 0.0, 1.0),  # exactly: 24 times 0.1 over 24 is not 0.1
        ([0.0] * 24, 0.0, 0.0),
        ([-1.0, 1.0] * 12, (24 / 23) ** 0.5, 0.5),
        ([1e9, 1e9 + 1] * 12, (6 / 23) ** 0.5, 1.0),  # squares would lose all digits
    ],
)
def test_rewards(reward: list[float], std: float, positive: float, step: tuple[Batch, Batch]) -> None:
    raw, made = (replace(batch, reward=torch.tensor(reward, dtype=f64)) for batch in step)
    found = measure.batch_metrics(raw, made, True, 6)
    assert found["critic/rewards/std"] == pytest.approx(std, rel=1e-6, abs=0)
    assert found["critic/rewards/positive_share"] == positive


def test_what_is_not_there_has_no_spread(step: tuple[Batch, Batch]) -> None:
    """Without a score no metric of scores; where returns do not vary nothing explains them."""
    raw, made = step
    none = torch.full_like(raw.reward, math.nan)
    found = measure.batch_metrics(replace(raw, reward=none), made, True, 6)
    assert not [name for name in found if name.startswith("critic/")]
    same = replace(made, target=torch.ones_like(made.mask) * made.mask)
    assert "critic/vf_explained_var" not in measure.batch_metrics(raw, same, True, 6)
    only_one = torch.arange(24) == 3
    one = measure.batch_metrics(raw.rows(only_one), made.rows(only_one), True, 6)
    assert one["critic/score/std"] == 0.0


@pytest.mark.parametrize("predicted", ["right", "mean", "worse"])
def test_explained_variance(predicted: str, step: tuple[Batch, Batch]) -> None:
    raw, made = step
    seen = made.mask > 0
    values = {
        "right": made.target,
        "mean": made.target[seen].mean() * made.mask,
        "worse": -made.target,
    }
    found = measure.batch_metrics(raw, replace(made, value=values[predicted]), True, 6)
    expected = {"right": 1.0, "mean": 0.0, "worse": -3.0}[predicted]
    assert found["critic/vf_explained_var"] == pytest.approx(expected, abs=1e-12)


def test_prompts_as_long_as_the_limit_are_counted(step: tuple[Batch, Batch]) -> None:
    raw, made = step
    prompt = raw.length - raw.mask.sum(1)
    for limit in (1, 3, 99):
        found = measure.batch_metrics(raw, made, True, 6, (), limit)
        assert found["prompt_length/clip_ratio"] == (prompt >= limit).double().mean().item()
    assert "prompt_length/clip_ratio" not in measure.batch_metrics(raw, made, True, 6)


# ---- distributions


DISTRIBUTIONS = [
    ([0.0, 1.0, 1.0, 0.5], (0.0, 1.0), {0: 1, 10: 1, 19: 2}),
    ([2.5, 2.5], (2.0, 3.0), {0: 2}),  # one bin that has a width
    ([1e300], (math.nextafter(1e300, 0), 1e300), {0: 1}),
    ([-1e308, 1e308], (-1e308, 1e308), {0: 1, 19: 1}),  # their difference is no number
    ([5e-324, 0.0], (0.0, 5e-324), {0: 1, 1: 1}),  # there are no edges between them
    ([math.nan, 3.0, math.inf, 4.0], (3.0, 4.0), {0: 1, 19: 1}),
]


@pytest.mark.parametrize(
    ("values", "ends", "counts"), DISTRIBUTIONS, ids=[str(values) for values, _, _ in DISTRIBUTIONS]
)
@pytest.mark.parametrize("shared", [True, False])
def test_distributions(shared: bool, values: list[float], ends: tuple[float, float], counts: Mapping[int, int]) -> None:
    """S2-24. As `Distribution` says it: counts[i] in [edges[i], edges[i + 1])."""
    found = measure.distribution(7, "x", torch.tensor(values, dtype=f64), shared)
    assert found and (found.step, found.name) == (7, "x")
    assert len(found.edges) == len(found.counts) + 1 <= measure.BINS + 1
    assert list(found.edges) == sorted(set(found.edges))
    last = math.nextafter(ends[1], math.inf) if len(set(values)) > 1 or ends[1] == 1e300 else ends[1]
    assert (found.edges[0], found.edges[-1]) == (ends[0], last)
    assert {place: count for place, count in enumerate(found.counts) if count} == counts
    assert from_line(to_line(found)) == found


@pytest.mark.parametrize("values", [[], [math.nan, -math.inf]])
def test_nothing_has_no_distribution(values: list[float]) -> None:
    assert measure.distribution(1, "x", torch.tensor(values, dtype=f64), shared=False) is None


def test_distributions_come_seldom() -> None:
    assert [step for step in range(32) if measure.shows_distributions(step)] == [0, 1, 10, 20, 30]


def test_gradient_norms_are_those_before_clipping(jobs: ModuleType) -> None:
    policy = jobs.policy_for("grpo", "float64", Limits(5))
    policy.actor.optim = replace(policy.actor.optim, clip_grad=1e-9)
    batch = policy.annotate(jobs.rollouts_of(policy.model, 1), Clock(), on_policy=False)
    batch = policy.algorithm.prepare(batch, {})[0]
    assert policy.update(batch, 2).weight_norms is None
    update = policy.update(batch, 10)
    assert update.weight_norms is not None and len(update.weight_norms) == len(policy.actor.weights)
    assert update.weight_norms.norm().item() == pytest.approx(update.metrics["actor/grad_norm"], rel=1e-12)


# ---- over processes and micro-batches


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", ["", " fsdp2"])
def test_several_processes_measure_the_same(
    size: int, way: str, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    expected = together(1)[0]["measured"]
    for each in together(size):
        found = each[f"measured{way}"]
        assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-9)
        assert found["norms"] == pytest.approx(expected["norms"], rel=1e-9)
        assert found["edges"] == pytest.approx(expected["edges"], rel=1e-9)
        assert found["counts"] == expected["counts"] and sum(found["counts"]) == 24


@pytest.mark.parametrize("rows", [1, 5, 24])
def test_micro_batches_do_not_matter(rows: int, jobs: ModuleType) -> None:
    found = []
    for limits in (Limits(rows), Limits(7)):
        policy = jobs.policy_for("gspo", "float64", limits)
        found.append(jobs.train_until(policy, 1, {})[0])
    assert "actor/seq_log_ratio_max" in found[0][1] and found[0][1]["actor/log_ratio_max"] > 0
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


def test_sums_leave_out_what_nothing_was_measured_of() -> None:
    sums, zero, one = Sums(torch.device("cpu")), torch.tensor(0.0), torch.tensor(1.0)
    assert sums.reduced() == ({}, {})
    sums.add(
        {"mean": Mean(one, one), "none": Mean(zero, zero), "top": Largest(-one), "empty": Largest(-math.inf * one)}
    )
    sums.add({"mean": Mean(zero, one), "top": Largest(one * 3)})
    assert sums.reduced() == ({"mean": 0.5}, {"top": 3.0})


def test_a_step_has_the_largest_of_its_updates() -> None:
    assert measure.largest_metrics([{"a": 1.0}, {"a": 3.0, "b": -1.0}, {"a": 2.0}]) == {"a": 3.0, "b": -1.0}
