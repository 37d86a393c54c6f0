"""A step comes to the same whatever it is split over: rows, tokens, processes, or parts of the weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch

from launcher.engines.torch.train.batching import Limits

KINDS = ("sft", "dpo", "ppo", "grpo", "dr_grpo", "gspo", "dapo", "gspo_selfplay")
Metrics = list[dict[str, float]]


def check_equal(found: Metrics, expected: Metrics, near: float) -> None:
    """Where something is learnt by a rule with an edge (a share of clipped tokens), float32 may fall on its other
    side: only losses and norms are compared then. The largest ratio has all the rounding of one token or answer.
    """
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        names = [name for name in ours if near < 1e-8 or "clipfrac" not in name]
        for name in names:
            within = near * 10 if "ratio_max" in name else near
            assert ours[name] == pytest.approx(theirs[name], within, within), name


def test_every_algorithm_is_here(jobs: ModuleType) -> None:
    assert tuple(jobs.ALGORITHMS) == KINDS


@pytest.fixture(scope="module")
def expected(jobs: ModuleType) -> Callable[[str], dict[str, Any]]:
    return cache(lambda kind: jobs.trained(kind, "float64", Limits(2), 3))


@pytest.mark.parametrize("limits", [Limits(1), Limits(3), Limits(16), Limits(1, 11), Limits(16, 40)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_do_not_change_the_result(
    kind: str, limits: Limits, jobs: ModuleType, expected: Callable[[str], dict[str, Any]]
) -> None:
    """By rows and by tokens; groups that must stay whole are larger than the smallest limits."""
    found = jobs.trained(kind, "float64", limits, 3)
    check_equal(found["metrics"], expected(kind)["metrics"], 1e-12)
    assert found["weights"] == pytest.approx(expected(kind)["weights"], rel=0, abs=1e-12)


@pytest.mark.parametrize("kind", ["sft", "ppo", "grpo"])
def test_micro_batches_do_not_change_the_result_in_float32_either(kind: str, jobs: ModuleType) -> None:
    """Here prompts are shared, and how they are depends on the split."""
    one, other = (jobs.trained(kind, "float32", limits, 3) for limits in (Limits(2), Limits(1, 30)))
    check_equal(one["metrics"], other["metrics"], 1e-5)
    assert one["weights"] == pytest.approx(other["weights"], rel=0, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_algorithm_moves_the_weights(kind: str, jobs: ModuleType) -> None:
    """Equal results of a step that does nothing would say nothing."""
    policy = jobs.policy_for(kind, "float64", Limits(3))
    before = jobs.weights(policy)
    jobs.train_until(policy, 1, {})
    moved = jobs.weights(policy) != before
    assert moved.double().mean() > 0.5
    assert (before[moved] - jobs.weights(policy)[moved]).abs().max() <= 2.1e-3  # twice a rate of 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["", " fsdp2"])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_do_not_change_the_result(
    size: int,
    way: str,
    kind: str,
    dtype: str,
    together: Callable[[int], list[dict[str, Any]]],
    jobs: ModuleType,
) -> None:
    if not jobs.compared(size, kind, dtype):
        pytest.skip("other sizes and algorithms say what there is to say")
    (single,), found = together(1), together(size)
    name = f"{kind} {dtype}{way}"
    for other in found[1:]:
        assert other[name] == found[0][name]  # each process holds the same weights, to the last bit
    near = 1e-6 if dtype == "float32" else 1e-12
    check_equal(found[0][name]["metrics"], single[f"{kind} {dtype}"]["metrics"], near)
    assert found[0][name]["weights"] == pytest.approx(single[f"{kind} {dtype}"]["weights"], rel=0, abs=near)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_expert_that_a_process_did_not_use_takes_the_gradient_of_the_others(
    size: int, together: Callable[[int], list[dict[str, Any]]]
) -> None:
    assert [found["experts"] for found in together(size)] == [[15.0, 1.0, None]] * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_finds_the_same(kind: str, jobs: ModuleType) -> None:
    found = jobs.trained(kind, "float64", Limits(2), 3, device=torch.device("cuda"))
    assert found["weights"] == pytest.approx(jobs.trained(kind, "float64", Limits(2), 3)["weights"], abs=1e-9)
