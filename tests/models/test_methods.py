"""The formulas of merging: values by hand, the papers' formulas by numpy, and what must hold for any numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from launcher.tools.merge.methods import Linear, Method, Slerp, Ties

Numbers = NDArray[np.float64]


def mix(
    method: Method, models: Sequence[Sequence[float] | Numbers], base: Sequence[float] | Numbers | None = None
) -> Numbers:
    tensors = [torch.tensor(np.array(values, np.float64)) for values in [*models, *([] if base is None else [base])]]
    last = None if base is None else tensors.pop()
    return method.mix(tensors, last).numpy()


def draw_tensors(count: int) -> st.SearchStrategy[list[Numbers]]:
    """Float32 numbers of any size, so that a result in float64 has room beyond them."""
    numbers = st.floats(-(2.0**100), 2.0**100, width=32)
    return st.integers(1, 40).flatmap(
        lambda n: st.lists(arrays(np.float64, n, elements=numbers), min_size=count, max_size=count)
    )


@pytest.mark.parametrize(
    ("method", "models", "base", "expected"),
    [
        (Linear(), [[1, 2], [3, 6]], None, [2, 4]),  # the mean
        (Linear(weights=(2.0, -1.0)), [[1, 1], [0, 3]], None, [2, -1]),  # away from the second
        (Slerp(t=1 / 3), [[1, 0], [0, 1]], None, [math.cos(math.pi / 6), math.sin(math.pi / 6)]),
        (Slerp(), [[1, 1], [3, 3]], None, [2, 2]),  # parallel: the chord
        (Slerp(), [[1, 1], [-1, -1]], None, [0, 0]),  # opposite: no direction to turn in
        (Slerp(t=0.25), [[0, 0], [4, 8]], None, [1, 2]),  # nothing has no angle
        (Ties(density=1.0), [[2, 0], [4, 4]], [1, 1], [3, 4]),  # +1 +3 agree: mean 2; -1 +3: + wins, its mean 3
        (Ties(density=1.0), [[3], [-1]], [1], [1]),  # +2 -2: nobody wins, the base stays
        (Ties(density=0.5, scale=0.5), [[2, 4], [5, 1]], [1, 1], [3, 2.5]),
        (Ties(density=0.25), [[3, 3, 2, 1]], [1, 1, 1, 1], [3, 3, 1, 1]),  # as large as the last that stays: stays too
    ],
)
def test_values_by_hand(
    method: Method, models: list[list[float]], base: list[float] | None, expected: list[float]
) -> None:
    assert mix(method, models, base) == pytest.approx(expected, rel=1e-15, abs=1e-15)


def ties_with_sort(models: Sequence[Numbers], base: Numbers, density: float, scale: float) -> Numbers:
    changes = np.stack(models) - base  # [M, N]
    k = max(round(density * base.size), 1)
    least = np.sort(np.abs(changes), axis=1)[:, -k]
    trimmed = np.where(np.abs(changes) >= least[:, None], changes, 0.0)
    sign = np.sign(trimmed.sum(0))
    agree = (np.sign(trimmed) == sign) & (sign != 0)
    return base + scale * (np.where(agree, trimmed, 0.0).sum(0) / np.maximum(agree.sum(0), 1))


@settings(deadline=None, max_examples=30)
@given(draw_tensors(4), st.floats(0.01, 1), st.floats(-2, 2).filter(bool))
def test_ties_equals_the_papers_formula(tensors: list[Numbers], density: float, scale: float) -> None:
    base, *models = tensors
    expected = ties_with_sort(models, base, density, scale)
    assert np.array_equal(mix(Ties(density=density, scale=scale), models, base), expected)


@settings(deadline=None, max_examples=30)
@given(draw_tensors(2), st.floats(0, 1), st.floats(0.1, 1))
def test_equal_models_stay_and_the_ends_are_the_models_to_the_last_bit(
    tensors: list[Numbers], t: float, density: float
) -> None:
    x, y = tensors
    for mixed in (mix(Linear(), [x, x]), mix(Slerp(t=t), [x, x]), mix(Ties(density=density), [x, x], x)):
        assert mixed.astype(np.float32).tobytes() == x.astype(np.float32).tobytes()
    assert mix(Linear(weights=(0.0, 5.0)), [x, y]).tobytes() == y.tobytes()
    assert mix(Slerp(t=0.0), [x, y]).tobytes() == x.tobytes()
    assert mix(Slerp(t=1.0), [x, y]).tobytes() == y.tobytes()


@pytest.mark.parametrize(
    ("method", "models", "lines"),
    [
        (Linear(), 1, ["--method linear: got 1 model; expected at least 2"]),
        (Linear(weights=(1.0, math.nan)), 2, ["--weights: one is not finite; expected numbers"]),
        (Linear(weights=(1.0, -1.0)), 2, ["--weights: their sum is 0; expected a sum to divide them by"]),
        (Slerp(), 3, ["--method slerp: goes from one model to one other, got 3; expected 2"]),
        (Slerp(t=math.nan), 2, ["--t: got nan; expected 0 to 1"]),
        (Ties(density=1.1, scale=0.0), 2,
         ["--scale: got 0.0; expected a number that is not 0", "--density: got 1.1; expected above 0 and at most 1"]),
    ],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_named(method: Method, models: int, lines: list[str]) -> None:
    assert list(map(str, method.problems(models))) == lines
