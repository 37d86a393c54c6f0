"""A run's folder: one writer at a time, names that stay inside, and a log that reads as if nothing had broken."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.core.events import Ended, Event, Phase, Restarted, Resumed, Started, Step, to_line
from launcher.core.problems import Problems
from launcher.runs import store
from launcher.runs.folder import (
    Attempt,
    Folder,
    Lock,
    free_name,
    holder,
    read_attempts,
    take,
    writer_here,
)

HOST = socket.gethostname()
STARTED = Started(at=1.0, run="p/a", algorithm="SFT", processes=1)
ENDED = Ended(at=90.0, how="stopped", why="w")


def step(number: int) -> Step:
    return Step(at=float(number), step=number, metrics={"train/loss": 1.0})


def text_of(events: Iterable[Event]) -> str:
    return "".join(to_line(event) + "\n" for event in events)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "runs" / "p" / "a"
    path.mkdir(parents=True)
    return Folder(path)


# ---- one writer

HOLD = """
import subprocess, sys, time
from pathlib import Path
from launcher.runs.folder import Folder, Lock
lock = Lock(Folder(Path(sys.argv[1])), wait_s=5)
child = None
if len(sys.argv) > 2:  # a training process, which holds the lock too
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.descriptor,), stdout=subprocess.DEVNULL)
print(child.pid if child else 0, flush=True)
time.sleep(60)
"""


Hold = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def hold(folder: Folder) -> Iterator[Hold]:
    """Another process that holds the run's lock, and the child that holds it too (0: none)."""
    began: list[int] = []

    def begin(*child: str) -> tuple[subprocess.Popen[str], int]:
        words = [sys.executable, "-c", HOLD, str(folder.path), *child]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        pid = int(process.stdout.readline())
        began.extend(filter(None, (process.pid, pid)))
        process.stdout.close()
        return process, pid

    yield begin
    for pid in began:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_second_writer_is_refused_at_once_and_told_who_writes(folder: Folder, hold: Hold) -> None:
    process, _ = hold()
    assert holder(folder) == {"pid": process.pid, "host": HOST} and writer_here(folder) == process.pid
    with pytest.raises(Problems) as refused:
        Lock(folder, wait_s=60)  # fails at once while a live process holds it
    assert refused.value.lines == [
        f"p/a: is being written by process {process.pid} on {HOST}; rlrun stop {folder.path} would end it"
    ]
    process.kill()
    process.wait()
    with Lock(folder):
        assert holder(folder) == {"pid": os.getpid(), "host": HOST}
    assert holder(folder) is None


def test_a_child_keeps_the_run_locked_until_it_ends(folder: Folder, hold: Hold) -> None:
    process, child = hold("child")
    process.kill()
    process.wait()
    assert holder(folder) == {"pid": process.pid, "host": HOST} and writer_here(folder) is None
    with pytest.raises(Problems, match=f"is being written by process {process.pid} on {HOST}"):
        Lock(folder, wait_s=0.2)
    assert store.stop(folder, now=True, wait_s=0.2).startswith("was asked to stop and is still saving")
    killer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.3); os.kill({child}, 9)"])
    with Lock(folder, wait_s=30):  # processes of a killed run end within moments: it waits for them
        assert holder(folder) == {"pid": os.getpid(), "host": HOST}
    killer.wait()


def test_what_a_killed_writer_left_in_the_file_is_no_obstacle(folder: Folder) -> None:
    for left in ('{"pid": 1, "host": "elsewhere"}', '{"pid": 99999999, "host": "x"}' * 9, "\xff\0"):
        (folder.path / ".lock").write_text(left, encoding="latin-1")
        assert holder(folder) is None
        with Lock(folder, wait_s=0):
            assert holder(folder) == {"pid": os.getpid(), "host": HOST}


# ---- names


def test_a_new_run_takes_a_free_name_and_its_folder_for_its_owner_only(tmp_path: Path) -> None:
    for label, there, free in (
        ("a", [], "a-1"), ("b", ["b-1", "b-2", "b-10"], "b-3"), ("c", ["c", "c-2", "c-01", "grpo-c-1"], "c-1"),
    ):  # fmt: skip
        for name in there:
            (tmp_path / "p" / name).mkdir(parents=True)
        assert free_name(tmp_path, "p", label) == free
    folder, lock = take(tmp_path, "p", "a")
    assert stat.S_IMODE((folder.path / ".lock").stat().st_mode) == 0o600
    with lock:
        assert folder.path == tmp_path / "p" / "a" and folder.name == "p/a"
        assert holder(folder) == {"pid": os.getpid(), "host": HOST}
        logs = folder.new_attempt()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.path, logs, logs.parent)] == [0o700] * 3


@pytest.mark.parametrize(
    ("name", "text", "taken"),
    [
        ("events.jsonl", text_of([STARTED, Phase(name="loading")]), True),  # it ended before its first step
        ("events.jsonl", text_of([STARTED, step(0)]), False),
        ("checkpoints/step_000002/trainer.json", "{}", False),  # its log is gone, its weights are not
        ("refused.jsonl", "{}\n", True),  # its data was refused
    ],
)
def test_what_was_trained_is_not_overwritten(tmp_path: Path, name: str, text: str, taken: bool) -> None:
    file = (path := tmp_path / "p" / "a") / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    try:
        take(tmp_path, "p", "a")[1].__exit__()
        assert taken
    except Problems as refused:
        fix = f"use another name, or rlrun train --resume {path}"
        assert refused.lines == [f"trainer.experiment_name: {path} is there already; {fix}"] * (not taken)


def test_attempts_are_counted_by_their_numbers(folder: Folder) -> None:
    assert [folder.new_attempt().name for _ in range(11)] == [f"attempt_{number}" for number in range(1, 12)]
    assert [path.name for path in folder.attempts()][-2:] == ["attempt_10", "attempt_11"]  # not as texts
    for name in ("attempt_1.bak", "attempt_x", "attempt_", "attempt_007", "attempt_٣"):  # a person's own
        (folder.path / "logs" / name).mkdir()
    for path in folder.attempts()[:-1]:  # cleared away by a person
        path.rmdir()
    assert [path.name for path in folder.attempts()] == ["attempt_11"]
    assert folder.new_attempt().name == "attempt_12"


def test_the_ends_of_attempts_are_those_that_events_tell(folder: Folder) -> None:
    killed = "rank 1: killed by SIGKILL"
    again = Restarted(at=50.0, step=2, attempt=2, cause="killed", why=killed)
    logged = [(1, STARTED), (1, step(3)), (2, again), (2, step(4)), (3, Resumed(step=4, attempt=3)), (3, ENDED),
              (4, Ended(at=91.0, how="failed", why="w"))]  # fmt: skip
    folder.events.write_text("".join(to_line(event, seq=n, attempt=of) + "\n" for n, (of, event) in enumerate(logged)))
    for _ in range(5):
        folder.new_attempt()
    first, second = Attempt("attempt_1", 3, 50.0, "killed", killed), Attempt("attempt_2", 4)  # the launcher, too
    third, last = Attempt("attempt_3", 0, 90.0, "stopped", "w"), Attempt("attempt_5")
    assert read_attempts(folder) == [first, second, third, Attempt("attempt_4", 0, 91.0, "failed", "w"), last]


# ---- finding and seeing runs


def make(root: Path, name: str, *events: Event) -> Folder:
    path = root / name
    path.mkdir(parents=True)
    (path / "spec.yaml").write_text("")
    if events:
        (path / "events.jsonl").write_text(text_of(events))
    return Folder(path)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("p/one", "p/two", "q/two", "q/tiny-1"):
        make(tmp_path / "runs", name)
    (tmp_path / "runs" / "p" / "no-run").mkdir()
    return tmp_path / "runs"


def test_a_run_is_found_by_its_name_or_path_or_it_is_said_why_not(root: Path, tmp_path: Path) -> None:
    for name, path in (
        ("one", "p/one"), ("q/two", "q/two"), (f"{tmp_path}/runs/p/two", "p/two"), ("runs/p/one/../two", "p/two"),
    ):  # fmt: skip
        found = store.find(name, root)
        assert (found.path.resolve(), found.name) == ((root / path).resolve(), path)
    every = f"no run of that name in {root}; it may be p/one, p/two, q/tiny-1, q/two"
    for name, line in {
        "two": "'two': is the name of 2 runs; use p/two or q/two",
        "tiny-2": f"'tiny-2': no run of that name in {root}; did you mean q/tiny-1?",
        "a\0b": f"'a\\x00b': {every}",
        "a" * 300: f"'{'a' * 76}...: {every}",
        "~no-such-user": f"'~no-such-user': {every}",
    }.items():
        with pytest.raises(Problems) as refused:
            store.find(name, root)
        assert refused.value.lines == [line]
        with pytest.raises(Problems, match="there is none yet"):
            store.find(name, root / "none")
    assert list(store.every(root / "none")) == []


def test_the_run_that_wrote_last_comes_first(root: Path) -> None:
    for age, name in enumerate(("q/two", "p/one", "q/tiny-1", "p/two")):
        os.utime(root / name / "spec.yaml", (1000 - age, 1000 - age))
    (root / "p" / "two" / "events.jsonl").touch()  # now
    assert [run.folder.name for run in store.every(root)] == ["p/two", "q/two", "p/one", "q/tiny-1"]


@pytest.mark.parametrize(
    ("last", "status", "why"),
    [(step(1), "failed", "its processes are gone; --resume continues it"), (ENDED, "stopped", "w")],
)
def test_a_run_without_a_writer_is_not_shown_as_running(root: Path, last: Event, status: str, why: str) -> None:
    folder = make(root, "p/x", STARTED, Phase(name="update"), last)
    state = store.see(folder).state
    assert (state.status, state.phase, state.why) == (status, "", why)
    with Lock(folder):
        assert store.see(folder).state.phase == ("update" if last == step(1) else ""), "as it tells"


def test_hostile_folders_are_seen_and_cannot_hurt(root: Path, tmp_path: Path) -> None:
    """Names that are no names, links in a circle, a log that is no log."""
    make(root, "p/\x1b[2J\n", STARTED)
    make(root, os.fsdecode(b"p/\xff"), STARTED)
    (root / "p" / "loop").symlink_to("loop")
    (root / "p" / "up").symlink_to("..")
    (root / "p" / "link").symlink_to(root / "q" / "two")
    damaged = make(root, "p/damaged")
    damaged.events.write_bytes(b"\0\xff\n{}\n")
    names = {run.folder.name for run in store.every(root)}
    assert {"p/\x1b[2J\n", os.fsdecode(b"p/\xff"), "p/link", "p/damaged"} <= names
    assert "p/loop" not in names and "p/up" not in names
    assert store.see(damaged).state.alerts == 2
    with pytest.raises(Problems):
        store.find("loop", root)


@pytest.mark.parametrize(
    "written", ['{"pid": %d, "host": "%s"}', '{"pid": -1, "host": "%s"}', '{"pid": 9%%s, "host": "%s"}', "[" * 5000]
)
def test_only_a_process_that_holds_the_lock_is_signalled(folder: Folder, written: str) -> None:
    """Whatever the file says: another process of this user, every process (-1), or none."""
    with Lock(folder), subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        text = written.replace("9%%s", "9" * 400).replace("%d", str(other.pid)).replace("%s", HOST)
        (folder.path / ".lock").write_text(text)
        try:
            assert store.stop(folder, now=True, wait_s=0).startswith("was asked to stop and is still saving")
            assert other.poll() is None
            assert folder.stop_request.read_text() == "now", "whoever it is may look for it there"
            assert writer_here(folder) is None and store.see(folder).state.status == "waiting"
        finally:
            other.kill()
