"""What each attempt of a run left behind, also in folders that others wrote."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from launcher.runs.folder import Attempt, AttemptEnd, Folder, read_attempts

KILLED = AttemptEnd("killed", "rank 1: killed by SIGKILL", 1, 41, 1700000000.5)
STOPPED = AttemptEnd("stopped", "SIGTERM; nothing is saved yet", None, 0, 1700000100.0)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "runs" / "p" / "a"
    path.mkdir(parents=True)
    (path / "spec.yaml").write_text("")
    return Folder(path)


def test_an_end_comes_back_as_it_was(folder: Folder) -> None:
    for end in (KILLED, STOPPED):
        logs = folder.new_attempt()
        end.write(logs)
        assert stat.S_IMODE((logs / "ended.json").stat().st_mode) == 0o600
    folder.new_attempt()
    assert read_attempts(folder) == [
        Attempt("attempt_1", KILLED), Attempt("attempt_2", STOPPED), Attempt("attempt_3", None)
    ]  # fmt: skip


GOOD = json.dumps({"cause": "x", "why": "", "rank": None, "step": 1, "at": 1.0})
CHANGED = [("null", '"y"'), ('"step": 1', '"step": Infinity'), ("1.0", "1e300"), ("1.0", "NaN"), ("1.0", "-1.0")]
LEFT = ["", "{", "[]", "5", "{}", "[" * 5000, *(GOOD.replace(*change) for change in CHANGED)]


@pytest.mark.parametrize("left", LEFT, ids=range(len(LEFT)))
def test_what_cannot_be_read_is_no_end(folder: Folder, left: str) -> None:
    (folder.new_attempt() / "ended.json").write_text(left)
    assert read_attempts(folder) == [Attempt("attempt_1", None)]
