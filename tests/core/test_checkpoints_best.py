"""Which checkpoints stay: the newest, the best."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core import checkpoints
from launcher.core.checkpoints import (
    best_first,
    newest_first,
    retain,
    step_of,
    validated,
    write,
)
from launcher.core.metrics import grade

SCORE = "val-core/maths/reward/mean@1"
Score = float | None  # None: not validated at that step


@pytest.fixture(autouse=True, scope="module")
def _not_synced() -> Iterator[None]:
    """The disk itself is not asked, it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def save(root: Path, step: int, score: Score) -> Path:
    measured = {
        "step": step if score is not None else max(step - 1, 0),
        "metrics": {SCORE: 0.5 if score is None else score},
    }
    if score is not None and not math.isfinite(score):
        measured["metrics"] = {SCORE: str(score)}  # as events and checkpoints write it

    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")
        (folder / "trainer.json").write_text(json.dumps({"step": step, "validated": measured}))

    return write(root, step, fill)


def graded(folder: Path) -> float | None:
    return grade(validated(folder), None)


def kept(root: Path) -> list[int]:
    return sorted(map(step_of, newest_first(root)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("scores", "last", "best", "stay"),
    [
        ([0.1, 0.9, 0.3, 0.4, 0.2], 1, 1, [2, 5]),
        ([0.1, 0.9, 0.3, 0.4, 0.2], 2, 2, [2, 4, 5]),  # one of the best is new: no more are kept for that
        ([0.1, 0.9, 0.3, 0.4, 0.2], 1, 3, [2, 3, 4, 5]),
        ([0.1, 0.9, 0.3, 0.4, 0.2], 2, 0, [4, 5]),
        ([0.5, 0.5, 0.1], 1, 1, [2, 3]),  # of equals the newer
        ([None, 0.2, None, None], 1, 1, [2, 4]),  # what was not validated has no score
        ([None, None, None], 1, 1, [3]),
        ([math.nan, 0.1, math.inf, -math.inf, 0.0], 1, 1, [2, 5]),  # what is no number is never best
        ([-0.5, -0.2, -0.9], 1, 1, [2, 3]),
    ],
)
def test_the_newest_and_the_best_stay(
    scores: list[Score], last: int, best: int, stay: list[int], tmp_path: Path
) -> None:
    for step, score in enumerate(scores, 1):
        retain(tmp_path, last, best, graded, save(tmp_path, step, score))
    assert kept(tmp_path) == stay
    assert not list(tmp_path.glob(".*"))


def test_the_newest_that_verifies_stays_where_newer_ones_are_damaged(tmp_path: Path) -> None:
    for step in range(1, 5):
        save(tmp_path, step, None)
    for step in (3, 4):
        flip(tmp_path / f"step_00000{step}" / "weights")
    retain(tmp_path, 2, 1, graded)
    assert kept(tmp_path) == [2, 3, 4]


def test_where_none_verifies_all_stay(tmp_path: Path) -> None:
    for step in range(1, 4):
        flip(save(tmp_path, step, 0.5) / "weights")
    assert retain(tmp_path, 1, 1, graded) == []
    assert kept(tmp_path) == [1, 2, 3]


def test_a_damaged_best_is_not_best(tmp_path: Path) -> None:
    flip(save(tmp_path, 1, 0.9) / "weights")
    save(tmp_path, 2, 0.5)
    save(tmp_path, 3, 0.3)
    gone = retain(tmp_path, 1, 1, graded, save(tmp_path, 4, 0.1))
    assert kept(tmp_path) == [2, 4] and [step_of(path) for path in gone] == [3, 1]


def test_nothing_is_hashed_where_nothing_with_a_grade_would_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(save(tmp_path, 1, 0.9) / "weights")
    save(tmp_path, 2, None)
    newest = save(tmp_path, 3, 0.1)
    monkeypatch.delattr(checkpoints, "sha256")
    gone = retain(tmp_path, 1, 1, graded, newest)
    assert kept(tmp_path) == [1, 3] and [step_of(path) for path in gone] == [2]


def test_what_a_validation_measured_is_read_with_care(tmp_path: Path) -> None:
    at = save(tmp_path, 3, 0.5)
    assert validated(at) == {SCORE: 0.5} and best_first(tmp_path, graded) == [at]
    assert validated(save(tmp_path, 4, None)) == {}  # measured a step before
    for text in ("", "{", "[]", "{}", '{"validated": 3}', '{"validated": {"step": 3, "metrics": {"a": "x"}}}',
                 '{"validated": {"step": 3, "metrics": [1]}}', "\udcff"):  # fmt: skip
        (at / "trainer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert validated(at) == {}
    (at / "trainer.json").unlink()
    assert validated(at) == {}
