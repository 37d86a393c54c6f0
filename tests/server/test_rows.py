"""Where a job stands, and what an answer may hold."""

from __future__ import annotations

import json

import pytest

from launcher.core.state import RunState
from launcher.launch.queue import PROBLEM_MARK
from launcher.runs.folder import Folder
from launcher.runs.store import Run
from launcher.server.answers import encoded
from launcher.server.records import JobRecord
from launcher.server.rows import last_words, standing_of


@pytest.mark.parametrize(("last_at", "expected"), [(90.0, "waiting"), (110.0, "finished")])
def test_a_process_begins_only_until_it_has_written_something(tmp_path, last_at, expected):
    """What it does after its last event is no beginning."""
    run = Run(Folder(tmp_path), RunState(status="finished", started_at=80.0, last_at=last_at))
    record = JobRecord("a", place="p/a", request="start", requested_at=100.0)
    assert standing_of(record, run, run.folder, begins=True).status == expected


def test_no_character_of_an_answer_steers_a_terminal_or_turns_text_around():
    steering = "\x1b\x9b\x80\x9f\u061c\u200f\u202e\u2067"
    assert encoded({"text": f"ä{steering}é"}) == (
        rb'{"text":"' + "ä".encode() + rb"\u001b\u009b\u0080\u009f\u061c\u200f\u202e\u2067" + "é".encode() + b'"}'
    )
    assert json.loads(encoded([steering])) == [steering]


def test_problems_of_a_process_are_found_whatever_came_after_them():
    printed = f"a line\n{PROBLEM_MARK}one\n{PROBLEM_MARK}two\nException ignored in a thread\n"
    assert last_words(printed.encode()) == ["one", "two"]
    assert last_words(b"a line\nthe last\n") == ["the last"]
