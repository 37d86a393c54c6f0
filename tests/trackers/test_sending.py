"""What is sent arrives once, whatever fails in between. The tracker is `file`, which needs no library."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import Ended, Restarted, Step
from launcher.core.problems import Problems
from launcher.trackers.sending import Sender
from launcher.trackers.tracker import read_state, state_file, write_state


def send(folder: Path, name: str = "file", **more):
    messages = list[str]()
    sent = Sender(name, folder, lambda: False, messages.append, pause=lambda seconds: None, **more).run()
    return sent, messages


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in lines(folder)]


def step(number: int) -> Step:
    return Step(at=float(number), step=number, metrics={"a": number / 7})


def test_every_value_arrives_equal(folder, awkward, expected):
    folder.write(awkward)
    sent, _ = send(folder.path)
    assert (sent.steps, sent.samples, sent.failure) == (13, 2, "")
    found = {line["step"]: {name: float(value) for name, value in line["data"].items()} for line in lines(folder.path)}
    assert repr(found) == repr(expected)


def test_steps_that_are_undone_after_they_were_sent_are_appended_again(folder):
    folder.write([step(n) for n in range(4)])
    send(folder.path)
    folder.write([Restarted(step=1, attempt=2, cause="killed", why=""), step(2), step(3), Ended(how="finished")])
    send(folder.path)
    assert steps_of(folder.path) == [0, 1, 2, 3, 2, 3]


def test_what_a_kill_has_written_but_not_remembered_is_written_once(folder):
    folder.write([step(n) for n in range(5)])
    send(folder.path)
    before = read_state(folder.path, "file")
    folder.write([step(n) for n in range(5, 9)])
    send(folder.path)
    whole = (folder.path / "metrics.jsonl").read_bytes()
    write_state(folder.path, "file", before)
    (folder.path / "metrics.jsonl").write_bytes(whole[:-7])  # the last line is torn, too
    send(folder.path)
    assert (folder.path / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: os.truncate(file, 10)])
def test_a_file_that_lost_what_it_had_begins_anew(folder, damage):
    folder.write([step(n) for n in range(5)])
    send(folder.path)
    damage(folder.path / "metrics.jsonl")
    folder.write([step(5)])
    assert send(folder.path)[0].steps == 6
    assert steps_of(folder.path) == list(range(6))


def test_lines_of_others_stay_in_a_shared_file(folder, tmp_path, monkeypatch):
    shared = tmp_path / "shared.jsonl"
    shared.write_text('{"step": 99, "data": {}}\n')
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(shared))
    folder.write([step(0)])
    send(folder.path)
    send(folder.path)
    assert [json.loads(line)["step"] for line in shared.read_text().splitlines()] == [99, 0]
    shared.write_text("")  # theirs and ours are gone
    send(folder.path)
    assert [json.loads(line)["step"] for line in shared.read_text().splitlines()] == [0]


def test_a_tracker_that_is_down_catches_up(folder, tmp_path, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(blocked))
    folder.write([step(0), step(1)])
    pauses, messages, alive = list[float](), list[str](), iter([True] * 400)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 40:
            blocked.unlink()

    sender = Sender("file", folder.path, lambda: next(alive, False), messages.append, pause=pause)
    sent = sender.run()
    assert sent.steps == 2 and sent.failure == ""
    assert "blocked" in messages[0] and messages[1] == "file: works again" and len(messages) == 2
    assert max(pauses) <= 0.5  # it looks often whether the run has ended
    assert (blocked / "p" / "one.jsonl").read_text().count("\n") == 2


def test_one_process_at_a_time_sends_a_run(folder):
    folder.write([step(0)])
    send(folder.path)
    with (folder.path / "trackers" / ".file.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Problems, match="another process sends this run to file"):
            send(folder.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', '{"id":"x","seq":"a","row":0,"shift":0,"state":{}}'])
def test_a_damaged_position_is_named_and_nothing_is_sent_twice(folder, text):
    folder.write([step(0)])
    send(folder.path)
    state_file(folder.path, "file").write_text(text)
    with pytest.raises(Problems, match=r"file\.json: holds no position of a tracker; delete it"):
        send(folder.path)
    assert steps_of(folder.path) == [0]


def test_a_link_in_a_copied_folder_is_not_followed(folder, tmp_path):
    folder.write([step(0)])
    (tmp_path / "theirs").mkdir()
    (folder.path / "trackers").symlink_to(tmp_path / "theirs")
    with pytest.raises(Problems, match="is a link"):
        send(folder.path)
    (folder.path / "trackers").unlink()
    (tmp_path / "precious").write_text("x")
    (folder.path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    assert send(folder.path)[0].failure
    assert (tmp_path / "precious").read_text() == "x"


def test_the_id_stays_when_the_folder_is_renamed(folder):
    folder.write([step(0)])
    send(folder.path)
    before = read_state(folder.path, "file").id
    moved = folder.path.rename(folder.path.with_name("two"))
    assert read_state(moved, "file").id == before and len(before) == 12


def test_killed_again_and_again_it_sends_everything_once(folder, kill_once_sent):
    """The process that a run starts, killed at five moments while the log grows."""
    chance, count = random.Random(0), 0
    argv = [sys.executable, "-m", "launcher.trackers.sending", "file", str(folder.path)]
    for _ in range(5):
        folder.write([step(count + n) for n in range(300)])
        count += 300
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        kill_once_sent(process, "file", chance.randrange(-1, count - 300))
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert steps_of(folder.path) == list(range(count))
