"""The task made from its seed."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.problems import Problems
from launcher.data.reverse import DISTINCT, Reverse
from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, Split


def rows(split: Split, kind: Kind, **values: Any) -> list[Row]:
    found = list(Reverse(**{"n_prompts": 600, "n_demos": 400, **values}).read(split, kind))
    return [row for row in found if isinstance(row, Row)]


def test_prompts_are_distinct_strings_and_held_out_ones_are_none_of_them() -> None:
    train, val = rows("train", "prompts", n_prompts=6000), rows("val", "answers", n_prompts=6000)
    prompts = {row.prompt for row in train}
    assert (len(train), len(prompts), len(val)) == (6000, 6000, 256)
    assert not prompts & {row.prompt for row in val}
    for row in train + val:
        assert isinstance(row.prompt, str)
        string = row.prompt.removesuffix(">")
        assert row.prompt == f"{string}>" and 4 <= len(string) <= 8 and set(string) <= set("abcdefghij")
        assert (row.ground_truth, row.data_source, row.ability) == (string[::-1], "reverse", "copying")
    assert {row.response for row in train} == {None}  # to be sampled, not imitated
    assert all(row.response == row.ground_truth for row in [*val, *rows("val", "prompts")])  # held-out rows: no noise
    assert (train[16].where, val[0].where) == ("reverse:train:17", "reverse:val:1")
    lengths = [len(row.prompt) - 1 for row in train]
    assert all(1000 < lengths.count(length) < 1400 for length in range(4, 9))  # equally likely


@pytest.mark.parametrize(("noise", "right"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])
def test_noise_is_the_share_of_copies(noise: float, right: float) -> None:
    demos = rows("train", "answers", noise=noise)
    assert [row.prompt for row in demos] == [row.prompt for row in rows("train", "prompts")[:400]]
    assert all(row.response in (str(row.prompt)[:-1], row.ground_truth) for row in demos)
    lopsided = [row for row in demos if row.ground_truth != row.prompt[:-1]]
    share = sum(row.response == row.ground_truth for row in lopsided) / len(lopsided)
    assert share == pytest.approx(right, abs=0.02 if 0 < noise < 1 else 0)


def test_the_seed_alone_decides() -> None:
    assert [row.prompt for row in rows("train", "prompts")[:3]] == FIRST
    assert rows("train", "answers") == rows("train", "answers")
    assert rows("train", "prompts") != rows("train", "prompts", data_seed=78)
    assert rows("train", "prompts") == rows("train", "prompts", noise=0.1, n_demos=10, n_val=3)


FIRST = ["dcibef>", "cfgacieh>", "fibda>"]  # a change of these changes everybody's first run


def test_the_fingerprint_follows_the_rows() -> None:
    small = {"n_prompts": 50, "n_demos": 30, "n_val": 5}
    same = Reverse(**small).fingerprint()
    assert Reverse(**small, shuffle=False, train_batch_size=2).fingerprint() == same
    others = [{"n_prompts": 51}, {"n_demos": 29}, {"n_val": 6}, {"noise": 0.4}, {"data_seed": 1}]
    assert len({same, *(Reverse(**small | other).fingerprint() for other in others)}) == 6


def test_a_pair_prefers_the_reverse_to_the_copy() -> None:
    for split in ("train", "val"):
        pairs, prompts = rows(split, "pairs"), rows(split, "prompts")
        assert [row.prompt for row in pairs] == [row.prompt for row in prompts]
        for row in pairs:
            string = str(row.prompt).removesuffix(">")
            assert row.response == row.ground_truth == string[::-1]
            same = string == string[::-1]
            assert row.rejected == (string[: len(string) // 2] if same else string)
            assert row.rejected and row.rejected != row.response
    assert any(
        row.response == str(row.prompt)[:-1] for row in rows("train", "pairs", n_prompts=6000)
    )  # a palindrome is among them


def test_mixed_rows_are_pairs_and_prompts_by_turns() -> None:
    mixed, pairs, prompts = (rows("train", kind) for kind in ("mixed", "pairs", "prompts"))
    assert mixed[::2] == pairs[::2] and mixed[1::2] == prompts[1::2]
    held_out = rows("val", "mixed")
    assert len(held_out) == 256 and all(row.rejected is None and row.response is None for row in held_out)


SIZES = "held-out prompts are more than the 111110000 strings; use"


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ({"n_prompts": DISTINCT}, f"111110000 training and 256 {SIZES} at most 111109744"),
        ({"n_val": DISTINCT}, f"6000 training and 111110000 {SIZES} smaller sizes"),
    ],
)
def test_sizes_that_cannot_be(values: dict[str, Any], got: str) -> None:
    assert list(map(str, Reverse(**values).problems())) == [f"data.n_prompts: {got}"]
    with pytest.raises(Problems):  # and not a search without end
        next(Reverse(**values).read("train", "prompts"))
    assert Reverse().problems() == []
