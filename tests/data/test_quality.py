"""Duplicates, prompts of both splits, and lengths, as exact numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.data.quality import Histogram, Seen, Twice, histogram, in_both, repeated
from launcher.spec.algorithm import Kind
from launcher.spec.data import Message, Row


def seen(*rows: Row, kind: Kind = "prompts") -> Seen:
    found = Seen()
    for row in rows:
        found.add(row, kind)
    return found


def test_rows_that_are_there_twice() -> None:
    rows = [Row("a:1", "x"), Row("a:2", "y", "1"), Row("b:3", (Message("user", "x"),)), Row("b:7", "y", "2"),
            Row("b", "x", ground_truth="4", data_source="other")]  # fmt: skip
    found = seen(*rows)
    assert [*repeated(found)] == [Twice("b:3", "a:1"), Twice("b:7", "a:2")], (
        "of two right answers one is not a repetition"
    )
    assert found.repeats == 2
    games = seen(Row("a:1", "x", extra_info={"index": 1, "seed": 1}), Row("a:2", "x", extra_info={"seed": 2}),
                 Row("a:3", "x", extra_info={"index": 3, "seed": 1}))  # fmt: skip
    assert [*repeated(games)] == [Twice("a:3", "a:1")]
    assert (found.without_truth, found.sources) == (4, {rows[0].data_source: 4, "other": 1})
    turns = (Message("user", "x"), Message("assistant", "1"))
    answers = seen(Row("a:1", "x", "1"), Row("a:2", "x", "2"), Row("b:3", turns), kind="answers")
    assert [*repeated(answers)] == [Twice("b:3", "a:1")]
    pairs = seen(Row("a:1", "x", "1", rejected="2"), Row("a:2", "x", "1", rejected="3"), kind="pairs")
    assert [*repeated(pairs)] == [] and [*repeated(Seen())] == []


def test_prompts_of_both_splits_are_named_with_their_first_row() -> None:
    train = seen(Row("t:1", "x"), Row("t:2", "y", "1"), Row("t:3", "y"))
    held = seen(Row("v:1", "z"), Row("v:2", "y", "2"), Row("v:3", (Message("system", "x"),)), kind="answers")
    assert [*in_both(train, held)] == [Twice("v:2", "t:2")]


@pytest.mark.parametrize(("lengths", "limit", "expected"), [
    ([], 4, Histogram(0, 0.0, {}, [], 4, 0)),
    ([5], 5, Histogram(1, 5.0, {"p50": 5, "p90": 5, "p99": 5, "max": 5}, [(5, 1)], 5, 0)),
    ([6, 4, 4], 5, Histogram(3, 14 / 3, {"p50": 4, "p90": 6, "p99": 6, "max": 6}, [(4, 2), (5, 0), (6, 1)], 5, 1)),
    (range(101), 89, Histogram(101, 50.0, {"p50": 50, "p90": 90, "p99": 99, "max": 100},
                               [*((last, 7) for last in range(6, 98, 7)), (104, 3)], 89, 11)),
    (range(1, 17), 16, Histogram(16, 8.5, {"p50": 9, "p90": 15, "p99": 16, "max": 16},
                                 [(last, 1) for last in range(1, 17)], 16, 0)),
])  # fmt: skip
def test_the_distribution_of_lengths(lengths: Sequence[int], limit: int, expected: Histogram) -> None:
    found = histogram(lengths, limit)
    assert found == expected
    assert found.share_over == (expected.over / len(lengths) if lengths else 0)
