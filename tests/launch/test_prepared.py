"""What was asked and what was found stay two values, and processes read both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.launch.start import run_of
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec
from launcher.spec.stored import Prepared, read_run, to_yaml


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """Its data lies in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    return resolve(
        ["algorithm=sft", "model=tiny", "data=files", "data.train_files=rows.jsonl", "data.train_batch_size=1"]
    )


@pytest.fixture
def folder(asked: RunSpec, tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "runs" / "p" / "a")
    made.path.mkdir(parents=True)
    made.spec.write_text(to_yaml(asked))
    made.prepared.write_text(Prepared.from_local(asked).to_json())
    return made


def files_of(run: RunSpec) -> tuple[str, ...]:
    assert isinstance(run.data, Files)
    return run.data.train_files


def test_processes_read_what_was_found(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert files_of(read_run(folder.path)) == (str(tmp_path / "rows.jsonl"),)
    assert "rows.jsonl" in folder.spec.read_text() and str(tmp_path) not in folder.spec.read_text()
    assert json.loads(folder.prepared.read_text())["directory"] == str(tmp_path)


def test_words_of_a_resume_change_what_was_asked_and_keep_what_was_found(folder: Folder, tmp_path: Path) -> None:
    run = run_of(folder, ["data.val_batch_size=3", "trainer.save_freq=7"])
    assert (run.data.val_batch_size, run.trainer.save_freq) == (3, 7)
    assert files_of(run) == (str(tmp_path / "rows.jsonl"),)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"directory": "/", "model": {"_target_": "os.system"}}'])
def test_what_is_no_such_value_is_refused(folder: Folder, text: str) -> None:
    folder.prepared.write_text(text)
    with pytest.raises(Problems, match=r"prepared\.json: "):
        run_of(folder, [])
