"""A checkpoint is there whole, or it is not there: every kind of damage is found, and no crash leaves a half one."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.core import checkpoints
from launcher.core.checkpoints import (
    MANIFEST,
    faults,
    newest_first,
    newest_verified,
    retain,
    set_aside,
    set_aside_after,
    step_of,
    validated,
)
from launcher.core.events import writable
from launcher.core.problems import Problem

SIZES = {
    "policy/model.safetensors": 3000,
    "policy/config.json": 40,
    "state/optimizer.safetensors": 3000,
    "trainer.json": 40,
    "policy/empty": 0,
}
OLD, NEW = "step_000002", "step_000004"


def fill(step: int, sizes: Mapping[str, int] = SIZES) -> Callable[[Path], None]:
    def into(folder: Path) -> None:
        random_bytes = random.Random(step)
        for name, size in sizes.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(random_bytes.randbytes(size))

    return into


def save(root: Path, *steps: int, sizes: Mapping[str, int] = SIZES) -> Path:
    for step in steps:
        checkpoints.write(root, step, fill(step, sizes))
    return root


def lines(found: Iterable[Problem]) -> list[str]:
    return list(map(str, found))


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that were made durable; the disk itself is not asked, it takes seconds."""
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.readlink(f"/proc/self/fd/{file}")))
    return done


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints of step 2, OLD, and step 4, NEW."""
    return save(tmp_path / "checkpoints", 2, 4)


def test_everything_is_durable_before_it_gets_its_name(
    root: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, before = os.rename, []

    def renamed(source: Path, target: Path) -> None:
        before.extend(synced)
        rename(source, target)

    synced.clear()
    monkeypatch.setattr(os, "rename", renamed)
    save(root, 6)
    draft = str(root / ".unfinished-step_000006")
    every = {"", "/policy", "/state", *(f"/{name}" for name in (*SIZES, MANIFEST))}
    assert {path.removeprefix(draft) for path in before} == every
    assert before.index(f"{draft}/{MANIFEST}") > max(before.index(f"{draft}/{name}") for name in SIZES)
    assert synced[len(before) :] == [str(root)]  # and then the name itself


# ---- damage

Damage = Callable[[Path], object]


def cut(size: int) -> Damage:
    return lambda path: os.truncate(path, size)


def flip(offset: int, bit: int = 0) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1 << bit
        path.write_bytes(data)

    return damage


def replaced(make: Callable[[Path], object]) -> Damage:
    return lambda path: (path.unlink(), make(path))


def of_step_2(path: Path) -> None:
    path.write_bytes((path.parents[1] / OLD / path.name).read_bytes())


KINDS: dict[str, tuple[str, Damage]] = {
    "deleted": ("trainer.json", Path.unlink),
    "the manifest deleted": (MANIFEST, Path.unlink),
    "a folder": ("trainer.json", replaced(Path.mkdir)),
    "the manifest a folder": (MANIFEST, replaced(Path.mkdir)),
    "a link to nothing": ("trainer.json", replaced(lambda path: path.symlink_to("gone"))),
    "cut": ("policy/model.safetensors", cut(39)),
    "its last bit": ("policy/model.safetensors", flip(-1, 7)),
    "zeros": ("policy/model.safetensors", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "the state of another step": ("trainer.json", of_step_2),
    "the manifest of another step": (MANIFEST, of_step_2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_named_and_the_one_before_is_used(root: Path, kind: str) -> None:
    name, damage = KINDS[kind]
    damage(root / NEW / name)
    newest, found = newest_verified(root)
    assert newest == root / OLD and [fault.where for fault in found] == [f"{NEW}/{name}"]


def test_every_byte_of_the_manifest_counts(root: Path) -> None:
    folder, fault = root / NEW, [f"{NEW}/{MANIFEST}: is not as it was written"]
    good = (folder / MANIFEST).read_bytes()
    with (folder / MANIFEST).open("r+b", buffering=0) as file:
        for place in range(len(good)):
            os.pwrite(file.fileno(), bytes([good[place] ^ 1 << place % 8]), place)
            assert lines(faults(folder)) == fault, place
            os.pwrite(file.fileno(), good[place : place + 1], place)
        assert faults(folder) == []
        for size in reversed(range(len(good))):
            file.truncate(size)
            assert lines(faults(folder)) == fault, size


def test_every_damaged_file_is_named_and_where_all_are_damaged_there_is_none(root: Path) -> None:
    for name in ("policy/config.json", "trainer.json"):
        flip(3)(root / NEW / name)
    (root / NEW / "state" / "optimizer.safetensors").unlink()
    cut(5)(root / OLD / "trainer.json")
    newest, found = newest_verified(root)
    assert newest is None and lines(found) == [
        f"{NEW}/policy/config.json: its bytes changed since it was written (sha256 differs)",
        f"{NEW}/state/optimizer.safetensors: No such file or directory",
        f"{NEW}/trainer.json: its bytes changed since it was written (sha256 differs)",
        f"{OLD}/trainer.json: has 5 bytes where 40 were written",
    ]


def test_what_only_looks_like_a_checkpoint_is_none(tmp_path: Path) -> None:
    root = save(tmp_path, 3)
    for name in ("step_12", "step_000009x", "xstep_000009", "step_-00009", "other", "step_٠٠٠٠٠٩"):
        (root / name).mkdir()
    (root / "step_000008").write_text("a file")
    assert [path.name for path in newest_first(root)] == ["step_000003"]
    assert newest_first(tmp_path / "none") == []
    assert newest_verified(tmp_path / "none") == (None, [])


# ---- a crash at every call to the system

FUNCTIONS = ("mkdir", "open", "close", "fsync", "chmod", "rename", "replace", "stat", "scandir", "listdir", "unlink",
             "rmdir", "lstat", "fstat")  # fmt: skip


class Killed(BaseException):
    """The process is gone: nothing it would still have done happens."""


@contextmanager
def failing_at(call: int, error: BaseException, forever: bool) -> Iterator[list[int]]:
    """Every function that pathlib and shutil ask the system by fails at the `call`-th call, and then all do."""
    patch, count = pytest.MonkeyPatch(), [0]

    def wrapped(function: Callable[..., object]) -> Callable[..., object]:
        def maybe(*values: object, **named: object) -> object:
            count[0] += 1
            if count[0] == call or (forever and count[0] > call):
                raise error
            return function(*values, **named)

        return maybe

    with patch.context() as patched:
        for function in FUNCTIONS:
            patched.setattr(os, function, wrapped(getattr(os, function)))
        patched.setattr(io, "open", wrapped(io.open))
        yield count


FEW = {"policy/model.safetensors": 30, "trainer.json": 20}
CASES: list[tuple[str, Callable[[Path], object]]] = [
    ("a new step", lambda root: None),
    ("a step that lies there damaged", lambda root: cut(9)(save(root, 6, sizes=FEW) / "step_000006" / "trainer.json")),
    ("a step that lies there whole", lambda root: save(root, 6, sizes=FEW)),
    ("what a kill left", lambda root: fill(6, FEW)(root / ".unfinished-step_000006")),
    ("what a kill left half removed", lambda root: fill(1, FEW)(root / ".removed-step_000006")),
]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), Killed()], ids=repr)
@pytest.mark.parametrize(("case", "before"), CASES, ids=[case for case, _ in CASES])
def test_whenever_it_breaks_off_the_older_one_stays_and_none_is_half(
    tmp_path: Path, case: str, before: Callable[[Path], object], error: BaseException
) -> None:
    for call in range(1, 1000):
        root = save(tmp_path / str(call), 2, sizes=FEW)
        before(root)
        done = False
        try:
            with failing_at(call, error, forever=isinstance(error, Killed)) as count:
                checkpoints.write(root, 6, fill(6, FEW))
                done = True
                retain(root, 1, 0, sealed=root / "step_000006")
        except (OSError, Killed):
            pass
        seen = {path.name: not faults(path) for path in newest_first(root)}
        assert seen.get("step_000002", done), "the older one may go only when the new one is there"
        if case == "a step that lies there damaged" and not done:
            seen.pop("step_000006", None)  # it may lie there still
        assert all(seen.values()), "a half one is seen"
        assert "step_000006" in seen or not done, "it was said to be written"
        save(root, 8, sizes=FEW)
        assert newest_verified(root) == (root / "step_000008", []), "the next one cannot be written"
        assert not list(root.glob(".*")), "something is left lying about"
        if count[0] < call:
            break
        shutil.rmtree(root)
    assert 50 < call < 1000, "not every call was made to fail"


# ---- which ones stay


SCORE = "val-core/maths/reward/mean@1"
Score = float | None  # None: not validated at that step


def save_graded(root: Path, step: int, score: Score) -> Path:
    metrics = dict.fromkeys((SCORE, "val/loss"), 0.5 if score is None else score)
    measured = {"step": step - (score is None), "metrics": writable(metrics)}
    text = json.dumps({"step": step, "validated": measured})

    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")
        (folder / "trainer.json").write_text(text)

    return checkpoints.write(root, step, fill)


def kept(root: Path) -> list[int]:
    return sorted(map(step_of, newest_first(root)))


@pytest.mark.parametrize(
    ("scores", "damaged", "last", "best", "stay"),
    [
        ([0.1, 0.9, 0.3, 0.4, 0.2], [], 1, 1, [2, 5]),
        ([0.1, 0.9, 0.3, 0.4, 0.2], [], 2, 2, [2, 4, 5]),  # one of the best is new: no more are kept for that
        ([0.1, 0.9, 0.3, 0.4, 0.2], [], 2, 0, [4, 5]),
        ([0.5, 0.5, 0.1], [], 1, 1, [2, 3]),  # of equals the newer
        ([None, 0.2, None, None], [], 1, 1, [2, 4]),  # what was not validated has no score
        ([None, None, None], [], 0, 1, [3]),  # never none
        ([math.nan, 0.1, math.inf, -math.inf, 0.0], [], 1, 1, [2, 5]),  # what is no number is never best
        ([0.9, 0.5, 0.3, 0.1], [1], 1, 1, [2, 4]),  # nor is what is damaged
        ([None, None, None, None], [3, 4], 2, 1, [2, 3, 4]),  # the newest that verifies
        ([None, None, None], [1, 2, 3], 1, 1, [1, 2, 3]),  # where none does, all
    ],
)
def test_the_newest_and_the_best_stay(
    scores: list[Score], damaged: list[int], last: int, best: int, stay: list[int], tmp_path: Path
) -> None:
    folders = {step: save_graded(tmp_path, step, score) for step, score in enumerate(scores, 1)}
    for step in damaged:
        flip(3)(folders[step] / "weights")
    gone = retain(tmp_path, last, best)
    assert kept(tmp_path) == stay
    assert sorted([*stay, *map(step_of, gone)]) == [*folders]
    assert not list(tmp_path.glob(".*"))


def test_the_best_is_that_of_the_metric_that_is_asked_for(tmp_path: Path) -> None:
    for step, loss in enumerate((0.1, 0.9, 0.5), 1):
        save_graded(tmp_path, step, loss)
    retain(tmp_path, 1, 1, "val/loss")
    assert kept(tmp_path) == [1, 3]


def test_nothing_is_hashed_where_nothing_with_a_grade_would_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = [save_graded(tmp_path, step, score) for step, score in ((1, 0.9), (2, None), (3, 0.1))][-1]
    monkeypatch.delattr(checkpoints, "sha256")
    gone = retain(tmp_path, 1, 1, sealed=newest)
    assert kept(tmp_path) == [1, 3] and [step_of(path) for path in gone] == [2]


def test_what_a_validation_measured_is_read_with_care(tmp_path: Path) -> None:
    at = save_graded(tmp_path, 3, 0.5)
    assert validated(at) == {SCORE: 0.5, "val/loss": 0.5}
    assert validated(save_graded(tmp_path, 4, None)) == {}  # measured a step before
    for text in ("", "{", "[]", "{}", '{"validated": 3}', '{"validated": {"step": 3, "metrics": {"a": "x"}}}',
                 '{"validated": {"step": 3, "metrics": [1]}}', "\udcff"):  # fmt: skip
        (at / "trainer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert validated(at) == {}
    (at / "trainer.json").unlink()
    assert validated(at) == {}


def test_steps_are_numbers_and_not_names(tmp_path: Path) -> None:
    root = save(tmp_path, 999_999, 1_000_000)
    retain(root, 1, 0)
    assert [path.name for path in newest_first(root)] == ["step_1000000"]


def test_what_is_set_aside_is_no_checkpoint_any_more_and_keeps_its_files(root: Path) -> None:
    for _ in range(3):  # as often as it happens
        save(root, 6, 8)
        set_aside_after(root, 4)
        assert [path.name for path in newest_first(root)] == ["step_000004", "step_000002"]
    aside = {path.name for path in root.iterdir() if path.name.startswith("damaged-")}
    assert aside == {f"damaged-step_00000{step}{times}" for step in (6, 8) for times in ("", "-1", "-2")}
    assert all((root / name / "policy" / "model.safetensors").stat().st_size == 3000 for name in aside)
    save(root, 10)
    assert aside < {path.name for path in root.iterdir()}  # tidying leaves them
    assert [step for step, _ in set_aside(root)] == [8, 8, 8, 6, 6, 6] and set_aside(root / "none") == []
    set_aside_after(root / "none", 4)


def test_tidy_removes_what_a_kill_left_and_nothing_else(root: Path) -> None:
    for name in (".unfinished-step_000006", ".removed-step_000002", "mine", ".hidden"):
        (root / name / "deep").mkdir(parents=True)
    checkpoints.tidy(root)
    assert sorted(path.name for path in root.iterdir()) == [".hidden", "mine", "step_000002", "step_000004"]
