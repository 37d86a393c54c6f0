"""Columns hold what a log holds: drawn logs that go back, are damaged and grow, beside `core.events.events_of`."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.events import Alert, Event, Phase, Restarted, Resumed, Sample, Step, events_of, is_damage, to_line
from launcher.core.problems import Problems
from launcher.core.redaction import printable
from launcher.server.columns import Columns
from launcher.server.live import LogPosition
from launcher.server.routes.curves import axis, curve, metric_nodes, thinned, trained_rows, wanted_names
from launcher.server.services import SharedCache

VALUES = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0, 3, True, 10**25]))
METRICS = st.dictionaries(st.sampled_from(["a", "b", "critic/score/mean", "\x1b[2J<b>", "ä,€"]), VALUES, max_size=4)
STEPS = st.integers(0, 6)
A_STEP = st.builds(Step, at=st.floats(0, 1e9), step=STEPS, metrics=METRICS)
EVENTS = st.one_of(
    A_STEP, A_STEP,
    st.builds(lambda step: Restarted(step=step, attempt=2, cause="killed", why="x"), STEPS),
    st.builds(lambda step: Resumed(step=step, attempt=2), STEPS),
    st.builds(lambda step, text: Sample(step=step, data_source="d", prompt=text, response="", ground_truth="",
                                        score=None), STEPS, st.text(max_size=9)),
    st.builds(lambda: Phase(name="rollout")),
    st.builds(lambda step: Alert(step=step, text="t"), STEPS),
)  # fmt: skip
OTHER_HANDS = st.sampled_from([
    b"{", b"null", b'"Step"', b"[1]", b"\xff", b'{"kind":"Step"}', b'{"kind":"Step","step":1,"metrics":{"a":null}}',
    b'{"kind":"Unknown","step":1}', b'{"metrics": {"a": 2.5}, "step": 3, "kind": "Step"}',
    b'{"kind": "Step", "step": 4, "metrics": {"b": NaN}}', b'{"kind":"Step","at":-1.0,"step":1,"metrics":{}}',
])  # fmt: skip
LINES = st.lists(st.one_of(EVENTS, EVENTS, OTHER_HANDS), max_size=30)


def line_of(seq: int, each: Event | bytes) -> bytes:
    return (each if isinstance(each, bytes) else to_line(each, seq=seq, attempt=1).encode()) + b"\n"


def write_steps(path, *metrics):
    """A log of a step for each of these metrics, whose clock goes back."""
    steps = (Step(at=100.0 - n, step=n + 1, metrics=each) for n, each in enumerate(metrics))
    path.write_bytes(b"".join(line_of(n, step) for n, step in enumerate(steps)))
    return Columns.of(path)


def same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


@given(LINES, st.lists(st.integers(0, 30), max_size=3), st.integers(0, 5))
def test_columns_hold_what_stands_in_the_log(tmp_path_factory, lines, stops, cut):
    """However often it was read while it grew, and with half a line at its end."""
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    written = [line_of(seq, each) for seq, each in enumerate(lines)]
    found = Columns(LogPosition(path))
    for stop in sorted({*(min(stop, len(lines)) for stop in stops), len(lines)}):
        path.write_bytes(b"".join(written[:stop]) + b"".join(written[stop : stop + 1])[: -1 - cut])
        found = found.read_on()
        stand = list(events_of(path))
        steps = [event for event in stand if isinstance(event, Step)]
        assert [*zip(found.steps, found.at, strict=True)] == [(each.step, each.at) for each in steps]
        for row, each in enumerate(steps):
            logged = {printable(name): repr(float(value)) for name, value in each.metrics.items()}
            assert {name: repr(value) for name, value in found.metrics_at(row).items()} == logged
        others = (Sample, Phase, Alert, Restarted, Resumed)
        rest = [event for event in stand if isinstance(event, others) and not is_damage(event)]
        assert list(found.events(*others)) == rest
        assert found.end.seq == stop


@given(st.lists(st.floats(width=64), max_size=200), st.integers(1, 50))
def test_no_extreme_is_lost(values, buckets):
    array = np.array(values, np.float64)
    found = thinned(np.arange(len(values), dtype=np.float64), array, buckets)
    finite = array[np.isfinite(array)]
    assert len(found["x"]) <= max(buckets, 0) and found["count"] == len(values)
    assert found["not_finite"] == len(values) - finite.size
    low, high, mean = (np.array(found[name], np.float64) for name in ("min", "max", "mean"))
    if finite.size and len(values) > buckets:
        assert np.nanmin(low) == finite.min() and np.nanmax(high) == finite.max()
    if len(values) <= buckets:
        assert all(map(same, mean, values)) and found["min"] == found["max"]


def test_axes_and_names(tmp_path):
    of = write_steps(tmp_path / "log", {"reward": 1.0, "perf/total_num_tokens": 10.0}, {"reward": math.nan},
                     {"perf/total_num_tokens": 5.0})  # fmt: skip
    assert axis(of, "step").tolist() == [1, 2, 3] and axis(of, "tokens").tolist() == [10, 10, 15]
    by_time = curve(of.series["reward"], axis(of, "time"), None, None, 9)
    assert by_time["x"] == [99, 100] and by_time["mean"][0] == "NaN"  # in the order of the axis
    assert wanted_names(of, ["critic/score/mean"]) == ["reward"] and len(wanted_names(of, [])) == 2
    with pytest.raises(Problems, match="nonsense"):
        wanted_names(of, ["nonsense"])
    row = metric_nodes(of, ["reward"], of.rows_between(None, 2))
    assert row == [{"reward": 1.0, "reward_mean": 1.0, "step": 1}, {"reward": "NaN", "reward_mean": "NaN", "step": 2}]


def test_a_log_that_is_begun_anew_is_read_anew(tmp_path):
    found, path = write_steps(tmp_path / "log", *[{"a": 1.0}] * 9), tmp_path / "log"
    assert found.steps.size == 9
    write_steps(tmp_path / "new", *[{"b": 1.0}] * 18)
    (tmp_path / "new").replace(path)
    assert found.read_on().series["b"].rows.tolist() == [*range(18)] and list(found.read_on().series) == ["b"]
    path.unlink()
    assert found.read_on().steps.size == 0


def test_what_is_kept_is_bounded():
    """What nobody asked for lately is forgotten, and computed again; the newest stays even if it is too large."""
    cache = SharedCache(10, len)
    for number in range(8):
        assert cache.get(number, lambda: "four") == "four" and cache.size <= 10
    assert cache.get(7, lambda: "anew") == "four" and cache.get(0, lambda: "anew") == "anew"
    assert cache.get("large", lambda: 20 * "x") and cache.size == 20


def test_two_threads_that_ask_for_the_same_compute_it_once():
    calls, cache = list[int](), SharedCache(2, lambda _: 1)

    def compute():
        calls.append(1)
        time.sleep(0.05)
        return len(calls)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: cache.get("key", compute), range(8))) == {1}


def test_a_row_of_a_validation_alone_is_no_row_of_training(tmp_path):
    score = {"val-core/maths/reward/mean@1": 0.5}
    before = {**score, "timing_s/testing": 1.5}
    for metrics, rows in (([before, {"loss": 1.0}, {"loss": 0.5, **score}], [1, 2]), ([before, score], [0, 1])):
        assert trained_rows(write_steps(tmp_path / "log", *metrics)).tolist() == rows
