"""Curves of any length take bounded memory, and lose neither an extreme nor the mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.reports.plots import line_of, plot, ticks
from launcher.views.trace import BUCKETS, Trace


def traced(values: list[float]) -> Trace:
    trace = Trace()
    for step, value in enumerate(values, start=1):
        trace.add(step, value)
    return trace


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2_000))
def test_nothing_that_matters_is_lost(values: list[float]) -> None:
    trace = traced(values)
    assert len(trace.buckets) <= BUCKETS
    assert (trace.count, trace.low, trace.high, trace.last) == (len(values), min(values), max(values), values[-1])
    assert trace.mean == pytest.approx(math.fsum(values) / len(values), abs=1e-6)
    assert {values[bucket.low_step - 1] for bucket in trace.buckets} >= {min(values)}
    assert max(bucket.high for bucket in trace.buckets) == max(values)
    assert [bucket.first for bucket in trace.buckets] == sorted(bucket.first for bucket in trace.buckets)
    assert sum(bucket.count for bucket in trace.buckets) == len(values)


def test_a_single_spike_among_many_steps_is_drawn() -> None:
    values = [0.1] * 50_000
    values[31_337] = 90.0
    line = line_of(traced(values))
    assert max(high for _, _, high in line.bounds) == 90.0 and len(line.points) <= BUCKETS
    assert 'class="range"' in plot(line, "x")


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    trace = traced([1.0, math.nan, math.inf, -math.inf, 3.0])
    assert (trace.count, trace.not_finite, trace.mean, trace.last) == (2, 3, 2.0, 3.0)
    assert math.isnan(Trace().mean) and math.isnan(Trace().low) and math.isnan(traced([math.nan]).late())


def test_first_and_last_values() -> None:
    assert traced([float(x) for x in range(100)]).ends() == (4.5, 94.5)
    assert traced([1.0, 5.0]).ends() == (1.0, 5.0)
    assert traced([1.0, 2.0, 9.0]).ends() == (1.0, 9.0)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1e308, -1e308], [1e-300, 2e-300], [-3.0, 1e12]])
def test_a_plot_of_odd_values_stays_within_its_frame(values: list[float]) -> None:
    svg = plot(line_of(traced(values)), "x")
    assert "nan" not in svg and "inf" not in svg


def test_labels_are_escaped_and_nothing_is_drawn_of_nothing() -> None:
    assert "<script>" not in plot(line_of(traced([1.0])), '"><script>')
    assert plot(line_of(Trace()), "x") == ""


def test_ticks_are_round() -> None:
    assert ticks(0.0, 1.0, 4) == pytest.approx([0.0, 0.5, 1.0])
    assert ticks(3.0, 3.0, 4) == ticks(math.nan, 1.0, 4) == []
