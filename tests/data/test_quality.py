"""Duplicates, and prompts of both splits, as exact numbers."""

from __future__ import annotations

from launcher.data.quality import Twice, count_repeats, in_both
from launcher.spec.data import Message, Row


def test_rows_that_are_there_twice() -> None:
    rows = [Row("a:1", "x"), Row("a:2", "y", "1"), Row("b:3", (Message("user", "x"),)), Row("b:7", "y", "2"),
            Row("b", "x", ground_truth="4", data_source="other")]  # fmt: skip
    assert count_repeats(rows, "prompts") == 2, "of two right answers one is not a repetition"
    games = [Row("a:1", "x", extra_info={"index": 1, "seed": 1}), Row("a:2", "x", extra_info={"seed": 2}),
             Row("a:3", "x", extra_info={"index": 3, "seed": 1})]  # fmt: skip
    assert count_repeats(games, "prompts") == 1
    turns = (Message("user", "x"), Message("assistant", "1"))
    assert count_repeats([Row("a:1", "x", "1"), Row("a:2", "x", "2"), Row("b:3", turns)], "answers") == 1
    pairs = [Row("a:1", "x", "1", rejected="2"), Row("a:2", "x", "1", rejected="3")]
    assert count_repeats(pairs, "pairs") == count_repeats([], "pairs") == 0


def test_prompts_of_both_splits_are_named_with_their_first_row() -> None:
    train = [Row("t:1", "x"), Row("t:2", "y", "1"), Row("t:3", "y")]
    held_out = [Row("v:1", "z"), Row("v:2", "y", "2"), Row("v:3", (Message("system", "x"),))]
    assert [*in_both(train, held_out)] == [Twice("v:2", "t:2")]
