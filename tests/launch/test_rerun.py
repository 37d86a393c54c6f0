"""A run that is made again: equal to the last digit, and what is different now is said first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.launch import provenance, rerun, start
from launcher.rewards.python import Python
from launcher.runs.folder import Folder
from launcher.spec import stored
from launcher.spec.stored import Prepared, to_yaml

ROWS = '{"prompt": "ab>", "response": "ba"}\n' * 8


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[str]) -> Folder:
    """A run's folder as `start` leaves it, without the training; its data lies in rows.jsonl."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    words = [word for word in small if not word.startswith("data")]
    asked = resolve(["algorithm=sft", *words, "data=files", "data.train_files=rows.jsonl", "data.train_batch_size=8"])
    folder, prepared = Folder(tmp_path / "runs/rlrun/first"), Prepared.from_local(asked)
    folder.path.mkdir(parents=True)
    folder.spec.write_text(to_yaml(asked))
    folder.prepared.write_text(prepared.to_json())
    provenance.write(folder, prepared.applied_to(asked), to_yaml(asked))
    return folder


def test_what_was_asked_and_what_was_found_stay_two_values(
    run: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes read both; words of a resume change what was asked."""
    assert "rows.jsonl" in run.spec.read_text() and str(tmp_path) not in run.spec.read_text()
    monkeypatch.chdir("/")
    for read in (stored.read_run(run.path), start.run_of(run, ["data.val_batch_size=3", "trainer.save_freq=7"])):
        assert isinstance(read.data, Files) and read.data.train_files == (str(tmp_path / "rows.jsonl"),)
    assert (read.data.val_batch_size, read.trainer.save_freq) == (3, 7)


def test_where_nothing_is_different_nothing_is_said(run: Folder) -> None:
    made = rerun.prepare_rerun(run, [])
    assert (made.differences, made.refused) == ([], [])
    assert (made.run.trainer.project_name, made.run.trainer.experiment_name) == ("rlrun", "first-rerun-1")
    (run.path.parent / "first-rerun-1").mkdir()
    assert rerun.prepare_rerun(run, []).run.trainer.experiment_name == "first-rerun-2"


def test_each_difference_has_a_line(run: Folder) -> None:
    """They are logged; none of them is refused."""
    lock = provenance.read(run)
    others = [each for each in lock["installed"] if not each.startswith("torch==")]
    changes = {
        "installed.torch: 1.0 -> ": {"installed": [*others, "torch==1.0"]},
        "system: BeOS -> ": {"system": "BeOS"},
    }
    if source := lock["code"]["rlrun"]:  # where rlrun is a clone
        changes["code.rlrun.diff: bbbbbbbbbbbb -> "] = {"code": {**lock["code"], "rlrun": {**source, "diff": "b" * 64}}}
    for line, change in changes.items():
        run.lock.write_text(json.dumps({**lock, **change}))
        made = rerun.prepare_rerun(run, [])
        assert len(made.differences) == 1 and made.differences[0].startswith(line) and made.refused == []
    run.lock.write_text(json.dumps(lock))
    run.spec.write_text(run.spec.read_text() + "\n")
    assert rerun.prepare_rerun(run, []).differences == ["spec.yaml: changed by hand since the run began"]


def test_words_change_settings_and_those_that_change_none_are_all_refused(run: Folder) -> None:
    made = rerun.prepare_rerun(run, ["optim.lr=1e-6", "seed=7", "trainer.experiment_name=other"])
    assert (made.run.optim.lr, made.run.seed, made.run.trainer.experiment_name) == (1e-6, 7, "other")
    assert made.differences == [], "what was asked for is no news"
    with pytest.raises(Problems) as found:
        rerun.prepare_rerun(run, ["algorithm=grpo", "sed=1", "optim.lr=fast", "seed=0,1", "model._target_=os.system"])
    assert [line.split(": ")[0] for line in found.value.lines] == [
        "algorithm", "sed", "'seed=0,1'", "model._target_", "optim.lr"
    ]  # fmt: skip
    with pytest.raises(Problems, match="brackets stand more than"):
        rerun.prepare_rerun(run, [f"optim.betas={'[' * 700}{']' * 700}"])
    with pytest.raises(Problems) as found:
        rerun.prepare_rerun(run, ["data.micro_batch_size_per_gpu=2", "seed=3"])
    assert [problem.fix for problem in found.value.problems] == ["use trainer.micro_batch_size_per_gpu=2"], (
        "verl's name"
    )


def test_other_data_is_refused_until_it_is_taken_as_it_is(run: Folder, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS + ROWS)
    made = rerun.prepare_rerun(run, ["data.train_batch_size=16"])  # a word about how it is read does not excuse that
    line = str(made.refused[0])
    assert line.startswith("data: is not what the run began with, ") and line.endswith("--anyway takes it as it is")
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(Problems, match=r"data.train_files: .*rows.jsonl is not there"):
        rerun.prepare_rerun(run, [])
    (tmp_path / "others.jsonl").write_text(ROWS + ROWS)
    cured = rerun.prepare_rerun(run, [f"data.train_files={tmp_path}/others.jsonl"])
    assert cured.refused, "but the rows are others"


def test_another_model_is_refused_and_a_lost_one_is_named(run: Folder, tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    made = resolve(["algorithm=sft", "model=hf", f"model.path={folder}", "data=reverse"])
    run.prepared.unlink()
    run.spec.write_text(to_yaml(made))
    provenance.write(run, made, to_yaml(made))
    assert rerun.prepare_rerun(run, []).refused == []
    (folder / "config.json").write_text('{"model_type": "qwen3"}\n')
    assert str(rerun.prepare_rerun(run, []).refused[0]).startswith("model: is not what the run began with, {'folder': ")
    shutil.rmtree(folder)
    with pytest.raises(Problems, match=r"model\.path"):
        rerun.prepare_rerun(run, [])


# ---- the real command line


MINE = {
    "my.py": "from helpers import right\n\n"
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    "    return right(solution_str, ground_truth)\n",
    "helpers.py": "def right(text, truth):\n    return len(set(text) & set(truth)) / 10\n",
}


@pytest.mark.slow
@pytest.mark.long  # the runs above are prepared alike, and tests/server begins one
def test_a_run_is_repeated_with_copies_of_its_own_code(
    commands: Any, small: list[str], tmp_path: Path, result: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rlrun = commands(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name, text in MINE.items():
        (tmp_path / "mine" / name).write_text(text)
    steps = ["trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.experiment_name=first"]
    ran = rlrun("train", *small, "algorithm=grpo", "reward=mine/my.py", *steps)
    assert ran.returncode == 0, ran.stderr
    first, again = rlrun.run("first"), rlrun.run("first-rerun-1")
    assert sorted(path.name for path in (first / "code" / "reward").glob("*.py")) == ["helpers.py", "my.py"]
    ran = rlrun("rerun", "first")
    assert ran.returncode == 0 and ran.stdout.startswith("nothing differs\n"), ran.stderr
    assert result(again, 3) == result(first, 3), "equal to the last digit"
    assert (again / "words.txt").read_text() == "rlrun rerun rlrun/first\n"

    moved = tmp_path / "elsewhere" / "p" / "moved"  # a folder that was carried away is whole
    shutil.copytree(first, moved)
    made = rerun.prepare_rerun(Folder(moved), ["seed=1"])
    assert made.run.trainer.experiment_name == "moved-rerun-1" and made.differences == []

    (tmp_path / "mine" / "helpers.py").write_text("def right(text, truth):\n    return 7.0\n")
    shutil.rmtree(again / "checkpoints" / "step_000003")
    (note,) = start.to_resume(Folder(again), []).notes
    assert "mine/helpers.py: changed or gone since the run began; " in note
    assert note.endswith("it goes on with its copy, which you may change: code/reward/my.py")
    repeated = rerun.prepare_rerun(Folder(first), [])
    assert repeated.refused == [] and repeated.differences == []
    assert isinstance(repeated.run.reward, Python) and repeated.run.reward.path == str(first / "code/reward/my.py")
