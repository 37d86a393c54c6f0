"""A run that goes on for longer, from an earlier checkpoint, or is done; and a spec.yaml that was changed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core.checkpoints import newest_first, sha256
from launcher.core.events import Step, events_of
from launcher.core.problems import Problems
from launcher.core.state import fold
from launcher.launch import start
from launcher.runs.folder import Folder

WORDS = ["algorithm=sft", "trainer.total_training_steps=4", "trainer.save_freq=2", "trainer.keep_last=9"]


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    return commands(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def trained(rlrun: Any, small: list[str]) -> Path:
    """A run of four steps to its end, with two checkpoints."""
    ran = rlrun("train", *small, *WORDS, "trainer.experiment_name=whole")
    assert ran.returncode == 0, ran.stderr
    return rlrun.run("whole")  # type: ignore[no-any-return]


@pytest.fixture
def done(trained: Path, request: pytest.FixtureRequest) -> Folder:
    """A copy of it."""
    return Folder(Path(shutil.copytree(trained, trained.with_name(request.node.name.partition("[")[0]))))


def files(folder: Folder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def losses(folder: Folder) -> dict[int, float]:
    steps = [event for event in events_of(folder.events) if isinstance(event, Step)]
    return {event.step: event.metrics["train/loss"] for event in steps if "train/loss" in event.metrics}


def test_a_run_that_is_done_is_answered_without_a_worker(done: Folder) -> None:
    before, found = files(done), start.to_resume(done, [])
    assert found.is_done and start.resume(done, [], []).exit_code == 0
    assert found.line == "already finished after step 4; trainer.total_training_steps=8 would go on"
    assert files(done) == before


def test_more_steps_go_on_from_the_newest_checkpoint(done: Folder) -> None:
    found = start.to_resume(done, ["trainer.total_training_steps=8"])
    assert (found.line, found.notes) == ("goes on from checkpoints/step_000004, to step 8", [])
    assert found.asked.trainer.total_training_steps == 8 and not found.is_done
    assert start.to_resume(done, ["trainer.total_training_steps=4"]).is_done
    with pytest.raises(Problems) as refused:
        start.to_resume(done, ["trainer.total_training_steps=3"])
    assert refused.value.lines == [
        "trainer.total_training_steps: got 3, and the run is at step 4; "
        "use more than 4, or --from an earlier checkpoint"
    ]


def test_an_earlier_checkpoint_is_one_that_is_there(done: Folder) -> None:
    assert start.to_resume(done, [], 2).line == "goes on from checkpoints/step_000002, to step 4"
    with pytest.raises(Problems) as refused:
        start.to_resume(done, [], 3)
    assert refused.value.lines == ["--from: no checkpoint of step 3; use 4 or 2"]


def test_a_curve_that_ends_elsewhere_is_told(done: Folder) -> None:
    for file, text in ((done.spec, "lr_scheduler_type: {}"), (done.lock, '"lr_scheduler_type": "{}"')):
        assert text.format("constant") in file.read_text()
        file.write_text(file.read_text().replace(text.format("constant"), text.format("cosine")))
    lock = json.loads(done.lock.read_text())
    done.lock.write_text(json.dumps({**lock, "spec": sha256(done.spec)}))
    assert start.to_resume(done, []).notes == []
    (note,) = start.to_resume(done, ["trainer.total_training_steps=8"]).notes
    assert note.startswith("the cosine learning rate now falls until step 8, before until 4: after step 4 it jumps")


@pytest.mark.slow
def test_a_dry_run_says_where_it_goes_on_and_changes_nothing(done: Folder, rlrun: Any) -> None:
    before = files(done)
    ran = rlrun("train", "--resume", done.path.name, "--from", "2", "trainer.total_training_steps=6", "--dry-run")
    assert ran.returncode == 0 and "goes on from checkpoints/step_000002, to step 6" in ran.stdout, ran.stderr
    assert files(done) == before
    ran = rlrun("train", "--resume", done.path.name)
    assert (ran.returncode, files(done)) == (0, before)
    assert "already finished after step 4; trainer.total_training_steps=8 would go on" in ran.stdout + ran.stderr


@pytest.mark.slow
def test_from_an_earlier_checkpoint_for_longer(done: Folder, trained: Path, rlrun: Any) -> None:
    ran = rlrun("train", "--resume", done.path.name, "--from", "2", "trainer.total_training_steps=6")
    assert ran.returncode == 0, ran.stderr
    state, before, after = fold(events_of(done.events)), losses(Folder(trained)), losses(done)
    assert (state.status, state.step, state.steps, state.alerts) == ("finished", 6, 6, 0)
    assert {step: after[step] for step in before} == before and after.keys() - before.keys() == {5, 6}
    assert [path.name for path in newest_first(done.checkpoints)] == ["step_000006", "step_000004", "step_000002"]
    assert (done.checkpoints / "aside-step_000004").is_dir(), "it was sound, and is kept"
    assert yaml.safe_load(done.spec.read_text())["trainer"]["total_training_steps"] == 6
    assert start.to_resume(done, []).is_done


def test_a_setting_changed_by_hand_is_refused_with_both_values(done: Folder) -> None:
    node = yaml.safe_load(done.spec.read_text())
    node["optim"]["lr"], node["seed"] = 0.5, 7
    done.spec.write_text(yaml.safe_dump(node))
    with pytest.raises(Problems) as refused:
        start.to_resume(done, [])
    fix = f"put it back; a new run would take it: rlrun train {done.spec}"
    assert refused.value.lines == [
        f"{done.spec}: optim.lr: is 0.5, and was 0.01 when the run began; {fix}",
        f"{done.spec}: seed: is 7, and was 0 when the run began; {fix}",
    ]


def test_one_that_may_change_is_taken_and_told(done: Folder) -> None:
    node = yaml.safe_load(done.spec.read_text())
    node["trainer"] |= {"total_training_steps": 8, "save_freq": 4}
    done.spec.write_text(yaml.safe_dump(node))
    found = start.to_resume(done, [])
    assert found.notes == [
        "spec.yaml was changed by hand: trainer.total_training_steps: 4 -> 8",
        "spec.yaml was changed by hand: trainer.save_freq: 2 -> 4",
    ]
    assert found.line == "goes on from checkpoints/step_000004, to step 8", "as if it had been typed"
    longer = start.to_resume(done, ["trainer.total_training_steps=9"])
    assert longer.line == "goes on from checkpoints/step_000004, to step 9"
