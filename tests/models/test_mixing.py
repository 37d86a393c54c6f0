"""The formulas, against plain float64 over whole arrays; and what must hold for any numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from launcher.tools.merge.mixing import Linear, Method, Slerp, Task, Ties, smallest_kept

Numbers = NDArray[np.float64]
Tensor = Sequence[float] | Numbers


class Held:
    """A tensor in memory, given in blocks."""

    def __init__(self, values: Sequence[float] | Numbers, block: int = 3) -> None:
        self.values, self.block = torch.tensor(np.array(values, np.float64)), block

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.values.split(self.block))


def mixed(
    method: Method, models: Sequence[Sequence[float] | Numbers], base: Sequence[float] | Numbers | None = None
) -> Numbers:
    return torch.cat([*method.mixed([Held(m) for m in models], None if base is None else Held(base))]).numpy()


def same_bits(one: Numbers, other: Numbers) -> bool:
    return one.tobytes() == other.tobytes()


# float32 numbers of any size, so that a result in float64 has room beyond them
NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
TENSORS = arrays(np.float64, st.integers(1, 40), elements=NUMBERS)


def several(count: int) -> st.SearchStrategy[list[Numbers]]:
    return st.integers(1, 40).flatmap(
        lambda n: st.lists(arrays(np.float64, n, elements=NUMBERS), min_size=count, max_size=count)
    )


# ---- values by hand


@pytest.mark.parametrize(
    ("method", "models", "base", "expected"),
    [
        (Linear(), [[1, 2], [3, 6]], None, [2, 4]),  # the mean
        (Linear(weights=(1.0, 3.0)), [[0, 4], [4, 8]], None, [3, 7]),  # weights count by their share
        (Linear(weights=(1.0, 3.0), normalize=False), [[0, 4], [4, 8]], None, [12, 28]),
        (Linear(weights=(2.0, -1.0)), [[1, 1], [0, 3]], None, [2, -1]),  # away from the second
        (Slerp(), [[1, 0], [0, 1]], None, [math.sqrt(0.5)] * 2),  # a quarter turn: half-way is 45 degrees, length 1
        (Slerp(t=1 / 3), [[1, 0], [0, 1]], None, [math.cos(math.pi / 6), math.sin(math.pi / 6)]),
        (Slerp(), [[2, 0], [0, 2]], None, [math.sqrt(2)] * 2),  # the length stays
        (Slerp(), [[1, 1], [3, 3]], None, [2, 2]),  # parallel: the chord
        (Slerp(), [[1, 1], [-1, -1]], None, [0, 0]),  # opposite: no direction to turn in
        (Slerp(t=0.25), [[0, 0], [4, 8]], None, [1, 2]),  # nothing has no angle
        (Task(), [[2, 1], [1, 3]], [1, 1], [2, 3]),  # 1 + 1 + 0, 1 + 0 + 2
        (Task(scale=-1.0), [[2, 1]], [1, 1], [0, 1]),  # unlearnt
        (Ties(density=1.0), [[2, 0], [4, 4]], [1, 1], [3, 4]),  # +1 +3 agree: mean 2; -1 +3: + wins, its mean 3
        (Ties(density=1.0), [[3], [-1]], [1], [1]),  # +2 -2: nobody wins, the base stays
        (Ties(density=0.5), [[2, 4], [5, 1]], [1, 1], [5, 4]),  # only the larger change of each is left
        (Ties(density=0.5, scale=0.5), [[2, 4], [5, 1]], [1, 1], [3, 2.5]),
        (Ties(density=0.25), [[3, 3, 2, 1]], [1, 1, 1, 1], [3, 3, 1, 1]),  # as large as the last kept stays too
    ],
)
def test_values_by_hand(
    method: Method, models: list[list[float]], base: list[float] | None, expected: list[float]
) -> None:
    assert mixed(method, models, base) == pytest.approx(expected, rel=1e-15, abs=1e-15)


# ---- against the formula, all at once


def of_ties(models: Sequence[Numbers], base: Numbers, density: float, scale: float) -> Numbers:
    """As the paper says it, with a sort."""
    changes = np.stack(models) - base  # [M, N]
    k = max(round(density * base.size), 1)
    least = np.sort(np.abs(changes), axis=1)[:, -k]
    kept = np.where(np.abs(changes) >= least[:, None], changes, 0.0)
    sign = np.sign(kept.sum(0))
    agree = (np.sign(kept) == sign) & (sign != 0)
    return base + scale * (np.where(agree, kept, 0.0).sum(0) / np.maximum(agree.sum(0), 1))


def of_slerp(x: Numbers, y: Numbers, t: float) -> Numbers:
    x_long, y_long = np.linalg.norm(x), np.linalg.norm(y)
    cosine = float(np.clip((x / x_long) @ (y / y_long), -1, 1)) if x_long and y_long else 1.0
    if abs(cosine) > 0.9995:
        return (1 - t) * x + t * y
    angle = math.acos(cosine)
    return (math.sin((1 - t) * angle) * x + math.sin(t * angle) * y) / math.sin(angle)


@settings(max_examples=200, deadline=None)
@given(several(4), st.floats(0.01, 1), st.floats(-2, 2).filter(bool))
def test_ties_is_the_papers(tensors: list[Numbers], density: float, scale: float) -> None:
    base, *models = tensors
    assert np.array_equal(
        mixed(Ties(density=density, scale=scale), models, base), of_ties(models, base, density, scale)
    )


@settings(deadline=None)
@given(several(2), st.floats(0, 1))
def test_slerp_is_shoemakes(tensors: list[Numbers], t: float) -> None:
    x, y = tensors
    assert mixed(Slerp(t=t), [x, y]) == pytest.approx(
        of_slerp(x, y, t), rel=1e-12, abs=1e-12 * max(abs(x).max(), abs(y).max())
    )


# ---- for any numbers


@settings(deadline=None)
@given(TENSORS, st.lists(st.floats(0.1, 10), min_size=2, max_size=5))
def test_a_mean_of_equal_models_is_the_model(x: Numbers, weights: list[float]) -> None:
    found = mixed(Linear(weights=tuple(weights)), [x] * len(weights))
    assert same_bits(found.astype(np.float32), x.astype(np.float32))


@settings(deadline=None)
@given(TENSORS, st.floats(0, 1), st.floats(0.1, 1))
def test_every_mix_of_equal_models_is_the_model(x: Numbers, t: float, density: float) -> None:
    for found in (mixed(Slerp(t=t), [x, x]), mixed(Ties(density=density), [x, x], x), mixed(Task(), [x, x], x)):
        assert same_bits(found.astype(np.float32), x.astype(np.float32))


@settings(deadline=None)
@given(several(3))
def test_at_the_ends_it_is_the_model_there_to_the_last_bit(tensors: list[Numbers]) -> None:
    x, y, z = tensors
    assert same_bits(mixed(Linear(weights=(1.0, 0.0, 0.0)), [x, y, z]), x)
    assert same_bits(mixed(Linear(weights=(0.0, 0.0, 5.0)), [x, y, z]), z)
    assert same_bits(mixed(Slerp(t=0.0), [x, y]), x)
    assert same_bits(mixed(Slerp(t=1.0), [x, y]), y)


@settings(deadline=None)
@given(several(2), st.floats(-3, 3).filter(bool))
def test_ties_of_one_model_whole_is_task_arithmetic(tensors: list[Numbers], scale: float) -> None:
    base, x = tensors
    found = mixed(Ties(density=1.0, scale=scale), [x], base)
    assert np.array_equal(found, base + scale * (x - base))
    assert same_bits(found, mixed(Task(scale=scale), [x], base))


@settings(deadline=None)
@given(several(3), st.floats(0.01, 1))
def test_the_order_of_two_models_makes_no_difference_to_ties(tensors: list[Numbers], density: float) -> None:
    base, x, y = tensors
    assert same_bits(mixed(Ties(density=density), [x, y], base), mixed(Ties(density=density), [y, x], base))


# ---- the threshold, found without a sort


@pytest.mark.parametrize(
    "values",
    [
        [0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 5e-324, 1.0], [3.0, 1.0, 2.0] * 7,
        np.abs(np.random.default_rng(0).standard_normal(500)),
        np.round(np.abs(np.random.default_rng(1).standard_normal(500)), 1),  # many are equal
        np.ldexp(1.0, np.random.default_rng(2).integers(-1000, 1000, 300)),
        1 + np.random.default_rng(3).integers(0, 9, 300) * 2.0**-52,  # alike but for the last bits
    ],
    ids=["one zero", "equal", "tiny", "few", "normal", "rounded", "every size", "last bits"],
)  # fmt: skip
def test_the_kth_largest_is_found(values: Sequence[float]) -> None:
    ranked = np.sort(np.array(values))[::-1]
    for density in (0.001, 0.1, 0.2, 0.5, 0.999, 1.0):
        k = max(round(density * len(ranked)), 1)
        zeros = Held(np.zeros(len(ranked)), block=64)
        assert smallest_kept(Held(values, block=64), zeros, density) == ranked[k - 1]


# ---- parameters


@pytest.mark.parametrize(
    ("method", "models", "lines"),
    [
        (Linear(), 1, ["--method linear: got 1 model; expected at least 2"]),
        (Linear(weights=(1.0,)), 2, ["--weights: got 1 for 2 models; expected one for each"]),
        (Linear(weights=(1.0, math.nan)), 2, ["--weights: one is not finite; expected numbers"]),
        (Linear(weights=(0.0, 0.0)), 2, ["--weights: all are 0; expected at least one that is not"]),
        (Linear(weights=(1.0, -1.0)), 2,
         ["--weights: their sum is 0, so they cannot be normalized; use --no-normalize"]),
        (Linear(weights=(1.0, -1.0), normalize=False), 2, []),
        (Slerp(), 3, ["--method slerp: goes from one model to one other, got 3; expected 2"]),
        (Slerp(t=1.5), 2, ["--t: got 1.5; expected 0 to 1"]),
        (Slerp(t=math.nan), 2, ["--t: got nan; expected 0 to 1"]),
        (Ties(density=0.0), 2, ["--density: got 0.0; expected above 0 and at most 1"]),
        (Ties(density=1.1, scale=0.0), 2,
         ["--scale: got 0.0; expected a number that is not 0", "--density: got 1.1; expected above 0 and at most 1"]),
        (Ties(), 1, []),  # one model, trimmed
        (Task(scale=math.inf), 1, ["--scale: got inf; expected a number that is not 0"]),
    ],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_named(method: Method, models: int, lines: list[str]) -> None:
    assert list(map(str, method.problems(models))) == lines
