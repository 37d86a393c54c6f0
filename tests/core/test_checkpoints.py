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
from tempfile import TemporaryDirectory

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
from launcher.core.metrics import grade
from launcher.core.problems import Problem

SIZES = {
    "policy/model.safetensors": 3000,
    "policy/config.json": 40,
    "state/optimizer.safetensors": 3000,
    "trainer.json": 40,
    "policy/empty": 0,
}
EVERY = [*SIZES, MANIFEST]


def fill(step: int, sizes: Mapping[str, int] = SIZES) -> Callable[[Path], None]:
    def into(folder: Path) -> None:
        random_bytes = random.Random(step)
        for name, size in sizes.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(random_bytes.randbytes(size))

    return into


def save(root: Path, *steps: int, sizes: Mapping[str, int] = SIZES) -> Path:
    for step in steps:
        checkpoints.write(root, step, fill(step, sizes))
    return root


def ungraded(folder: Path) -> None:
    """A grade that gives no score."""


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
    """Checkpoints of step 2 and step 4."""
    return save(tmp_path / "checkpoints", 2, 4)


def old(root: Path) -> Path:
    return root / "step_000002"


def new(root: Path) -> Path:
    return root / "step_000004"


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
    folders = {"", "/policy", "/state"}
    assert {path.removeprefix(draft) for path in before} == folders | {f"/{name}" for name in EVERY}
    assert before.index(f"{draft}/{MANIFEST}") > max(before.index(f"{draft}/{name}") for name in SIZES)
    assert synced[len(before) :] == [str(root)]  # and then the name itself


# ---- damage

Damage = Callable[[Path], None]


def cut(size: int) -> Damage:
    return lambda path: os.truncate(path, size)


def flip(offset: int, bit: int = 0) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1 << bit
        path.write_bytes(data)

    return damage


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_a_link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


KINDS: dict[str, tuple[str, Damage]] = {
    "deleted": ("trainer.json", Path.unlink),
    "the manifest deleted": (MANIFEST, Path.unlink),
    "a folder": ("trainer.json", replaced_by_a_folder),
    "the manifest a folder": (MANIFEST, replaced_by_a_folder),
    "a link to nothing": ("trainer.json", replaced_by_a_link_to_nothing),
    "cut": ("policy/model.safetensors", cut(39)),
    "its last bit": ("policy/model.safetensors", flip(-1, 7)),
    "zeros": ("policy/model.safetensors", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "the state of another step": (
        "trainer.json", lambda path: path.write_bytes((path.parents[1] / "step_000002" / path.name).read_bytes())
    ),
    "the manifest of another step": (
        MANIFEST, lambda path: path.write_bytes((path.parents[1] / "step_000002" / path.name).read_bytes())
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_named_and_the_one_before_is_used(root: Path, kind: str) -> None:
    name, damage = KINDS[kind]
    damage(new(root) / name)
    newest, found = newest_verified(root)
    assert newest == old(root)
    assert [fault.where for fault in found] == [f"step_000004/{name}"]


def test_every_byte_of_the_manifest_counts(root: Path) -> None:
    path = new(root) / MANIFEST
    good = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place in range(len(good)):
            os.pwrite(file.fileno(), bytes([good[place] ^ 1 << place % 8]), place)
            assert lines(faults(new(root))) == [f"step_000004/{MANIFEST}: is not as it was written"], place
            os.pwrite(file.fileno(), good[place : place + 1], place)
        assert faults(new(root)) == []
        for size in reversed(range(len(good))):
            file.truncate(size)
            assert lines(faults(new(root))) == [f"step_000004/{MANIFEST}: is not as it was written"], size


def test_every_damaged_file_is_named_and_where_all_are_damaged_there_is_none(root: Path) -> None:
    for name in ("policy/config.json", "trainer.json"):
        flip(3)(new(root) / name)
    (new(root) / "state" / "optimizer.safetensors").unlink()
    cut(5)(old(root) / "trainer.json")
    newest, found = newest_verified(root)
    assert newest is None and lines(found) == [
        "step_000004/policy/config.json: its bytes changed since it was written (sha256 differs)",
        "step_000004/state/optimizer.safetensors: No such file or directory",
        "step_000004/trainer.json: its bytes changed since it was written (sha256 differs)",
        "step_000002/trainer.json: has 5 bytes where 40 were written",
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
    ("what a kill left", lambda root: fill(6, FEW)(made(root / ".unfinished-step_000006"))),
    ("what a kill left half removed", lambda root: fill(1, FEW)(made(root / ".removed-step_000006"))),
]


def made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for many small files."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), Killed()], ids=repr)
@pytest.mark.parametrize(("case", "before"), CASES, ids=[case for case, _ in CASES])
def test_whenever_it_breaks_off_the_older_one_stays_and_none_is_half(
    in_memory: Path, case: str, before: Callable[[Path], object], error: BaseException
) -> None:
    for call in range(1, 1000):
        root = save(in_memory / str(call), 2, sizes=FEW)
        before(root)
        done = False
        try:
            with failing_at(call, error, forever=isinstance(error, Killed)) as count:
                checkpoints.write(root, 6, fill(6, FEW))
                done = True
                retain(root, 1, 0, ungraded, root / "step_000006")
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
    measured = {
        "step": step if score is not None else max(step - 1, 0),
        "metrics": {SCORE: 0.5 if score is None else score},
    }
    if score is not None and not math.isfinite(score):
        measured["metrics"] = {SCORE: str(score)}  # as events and checkpoints write it

    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")
        (folder / "trainer.json").write_text(json.dumps({"step": step, "validated": measured}))

    return checkpoints.write(root, step, fill)


def graded(folder: Path) -> float | None:
    return grade(validated(folder), None)


def kept(root: Path) -> list[int]:
    return sorted(map(step_of, newest_first(root)))


def spoil(path: Path) -> None:
    flip(len(path.read_bytes()) // 2)(path)


@pytest.mark.parametrize(
    ("scores", "last", "best", "stay"),
    [
        ([0.1, 0.9, 0.3, 0.4, 0.2], 1, 1, [2, 5]),
        ([0.1, 0.9, 0.3, 0.4, 0.2], 2, 2, [2, 4, 5]),  # one of the best is new: no more are kept for that
        ([0.1, 0.9, 0.3, 0.4, 0.2], 2, 0, [4, 5]),
        ([0.5, 0.5, 0.1], 1, 1, [2, 3]),  # of equals the newer
        ([None, 0.2, None, None], 1, 1, [2, 4]),  # what was not validated has no score
        ([None, None, None], 0, 1, [3]),  # never none
        ([math.nan, 0.1, math.inf, -math.inf, 0.0], 1, 1, [2, 5]),  # what is no number is never best
    ],
)
def test_the_newest_and_the_best_stay(
    scores: list[Score], last: int, best: int, stay: list[int], tmp_path: Path
) -> None:
    for step, score in enumerate(scores, 1):
        retain(tmp_path, last, best, graded, save_graded(tmp_path, step, score))
    assert kept(tmp_path) == stay
    assert not list(tmp_path.glob(".*"))


def test_the_newest_that_verifies_stays_and_where_none_does_all_stay(tmp_path: Path) -> None:
    for step in range(1, 5):
        save_graded(tmp_path, step, None)
    for step in (4, 3):
        spoil(tmp_path / f"step_00000{step}" / "weights")
    retain(tmp_path, 2, 1, graded)
    assert kept(tmp_path) == [2, 3, 4]
    spoil(tmp_path / "step_000002" / "weights")
    assert retain(tmp_path, 1, 1, graded) == [] and kept(tmp_path) == [2, 3, 4]


def test_a_damaged_best_is_not_best(tmp_path: Path) -> None:
    spoil(save_graded(tmp_path, 1, 0.9) / "weights")
    save_graded(tmp_path, 2, 0.5)
    save_graded(tmp_path, 3, 0.3)
    gone = retain(tmp_path, 1, 1, graded, save_graded(tmp_path, 4, 0.1))
    assert kept(tmp_path) == [2, 4] and [step_of(path) for path in gone] == [3, 1]


def test_nothing_is_hashed_where_nothing_with_a_grade_would_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(save_graded(tmp_path, 1, 0.9) / "weights")
    save_graded(tmp_path, 2, None)
    newest = save_graded(tmp_path, 3, 0.1)
    monkeypatch.delattr(checkpoints, "sha256")
    gone = retain(tmp_path, 1, 1, graded, newest)
    assert kept(tmp_path) == [1, 3] and [step_of(path) for path in gone] == [2]


def test_what_a_validation_measured_is_read_with_care(tmp_path: Path) -> None:
    at = save_graded(tmp_path, 3, 0.5)
    assert validated(at) == {SCORE: 0.5} and graded(at) == 0.5
    assert validated(save_graded(tmp_path, 4, None)) == {}  # measured a step before
    for text in ("", "{", "[]", "{}", '{"validated": 3}', '{"validated": {"step": 3, "metrics": {"a": "x"}}}',
                 '{"validated": {"step": 3, "metrics": [1]}}', "\udcff"):  # fmt: skip
        (at / "trainer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert validated(at) == {}
    (at / "trainer.json").unlink()
    assert validated(at) == {}


def test_steps_are_numbers_and_not_names(tmp_path: Path) -> None:
    root = save(tmp_path, 999_999, 1_000_000)
    retain(root, 1, 0, ungraded)
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
