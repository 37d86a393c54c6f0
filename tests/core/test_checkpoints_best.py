"""Which checkpoints stay: the newest, the best, and never a damaged one in place of a good one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.core import checkpoints
from launcher.core.checkpoints import (
    best_first,
    faults,
    newest_first,
    newest_verified,
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


def praised(folder: Path) -> None:
    """Its score is changed to the best there could be."""
    path = folder / "trainer.json"
    node = json.loads(path.read_text())
    path.write_text(json.dumps({**node, "validated": {"step": step_of(folder), "metrics": {SCORE: 99.0}}}))


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


@pytest.mark.parametrize(
    "damage", [lambda path: flip(path / "weights"), praised, lambda path: (path / "weights").unlink()]
)
def test_a_damaged_best_is_not_best(damage: object, tmp_path: Path) -> None:
    for step, score in enumerate([0.9, 0.5, 0.4], 1):
        save(tmp_path, step, score)
    damage(tmp_path / "step_000001")  # type: ignore[operator]
    gone = retain(tmp_path, 1, 1, graded, save(tmp_path, 4, 0.1))
    assert kept(tmp_path) == [2, 4]
    assert [step_of(path) for path in gone] == [3, 1]


def test_among_damaged_ones_the_best_good_one_stays(tmp_path: Path) -> None:
    for step, score in enumerate([0.9, 0.8, 0.1], 1):
        save(tmp_path, step, score)
    for step in (1, 2):
        flip(tmp_path / f"step_00000{step}" / "weights")
    retain(tmp_path, 1, 1, graded, save(tmp_path, 4, 0.05))
    assert kept(tmp_path) == [3, 4]


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


def test_only_that_is_hashed_on_which_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    look = checkpoints.faults
    monkeypatch.setattr(checkpoints, "faults", lambda path: hashed.append(step_of(path)) or look(path))
    for step, score in enumerate([0.1, 0.2, 0.3, 0.4, 0.5], 1):  # each better than the last
        retain(tmp_path, 2, 1, graded, save(tmp_path, step, score))
    assert (kept(tmp_path), hashed) == ([4, 5], [])
    retain(tmp_path, 2, 1, graded, save(tmp_path, 6, 0.1))
    assert (kept(tmp_path), hashed) == ([5, 6], [5])  # whether 4 may go hangs on whether 5 is good
    retain(tmp_path, 2, 1, graded, save(tmp_path, 7, None))
    assert (kept(tmp_path), hashed) == ([5, 6, 7], [5])  # nothing goes
    retain(tmp_path, 2, 1, graded, save(tmp_path, 8, 0.45))
    assert (kept(tmp_path), hashed) == ([5, 7, 8], [5])  # 8 is newer and better than 6, whatever 5 is


SAVES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        st.sampled_from(["", "", "", "flip", "praise", "delete"]),  # what happens to one of them afterwards
        st.integers(0, 10),  # to which
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(SAVES, st.integers(1, 3), st.integers(0, 2))
def test_whatever_happens_the_best_and_the_newest_good_one_stay(
    saves: list[tuple[Score, str, int]], last: int, best: int
) -> None:
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        root, good = Path(folder), dict[int, Score]()  # what is there and not damaged
        for step, (score, damage, which) in enumerate(saves, 1):
            sealed = save(root, step, score)
            good[step] = score
            retain(root, last, best, graded, sealed)
            there = kept(root)
            ranked = sorted((s, n) for n, s in good.items() if s is not None and math.isfinite(s))
            assert {n for _, n in ranked[len(ranked) - best :]} <= set(there), "one of the best is gone"
            assert max(good) in there and newest_verified(root)[0] == sealed
            assert len(there) <= last + 2 * best  # damaged ones may stay in the place of the best, until a better comes
            good = {n: s for n, s in good.items() if n in there}
            if damage:
                hit = there[which % len(there)]
                path = root / checkpoints.name_of(hit)
                {"flip": lambda p: flip(p / "weights"), "praise": praised,
                 "delete": lambda p: (p / checkpoints.MANIFEST).unlink(missing_ok=True)}[damage](path)  # fmt: skip
                good.pop(hit, None)
                if not faults(path):  # a bit that is turned twice is as it was
                    good[hit] = saves[hit - 1][0]


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
