"""A run that goes on for longer, from an earlier checkpoint, or is done; and a spec.yaml that was changed by hand."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.checkpoints import sha256
from launcher.core.problems import Problems
from launcher.launch import start, supervise
from launcher.monitor.console import LinePrinter
from launcher.runs.folder import Folder


@pytest.fixture
def done(trained: tuple[Any, Path], request: pytest.FixtureRequest) -> Folder:
    """A copy of a run of six steps, with checkpoints after 2, 4 and 6."""
    name = re.sub(r"\W+", "-", request.node.name)
    return Folder(Path(shutil.copytree(trained[1], trained[1].with_name(name))))


def test_a_run_that_is_done_is_answered_without_a_worker_and_goes_on_for_more_steps(
    done: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    files, found = [path for path in done.path.rglob("*") if path.is_file()], start.to_resume(done, [])
    before = [path.read_bytes() for path in files]
    with closing(LinePrinter()) as printer:
        assert found.is_done and start.resume(done, [], [printer]).exit_code == 0
    line = f"{done.name} already finished after step 6; trainer.total_training_steps=12 would go on"
    assert line in capsys.readouterr().out
    assert [path.read_bytes() for path in done.path.rglob("*") if path.is_file()] == before
    found = start.to_resume(done, ["trainer.total_training_steps=8"])
    assert found.checkpoint == done.checkpoints / "step_000006" and (found.steps, found.notes) == (8, [])
    assert found.asked.trainer.total_training_steps == 8 and not found.is_done
    assert start.to_resume(done, ["trainer.total_training_steps=6"]).is_done
    with pytest.raises(Problems) as refused:
        start.to_resume(done, ["trainer.total_training_steps=3"])
    fix = "use more than 6, or --from an earlier checkpoint"
    assert refused.value.lines == [f"trainer.total_training_steps: got 3, and the run is at step 6; {fix}"]


def test_an_earlier_checkpoint_is_one_that_is_there(done: Folder) -> None:
    found = start.to_resume(done, [], 2)
    assert found.checkpoint == done.checkpoints / "step_000002" and found.steps == 6
    with pytest.raises(Problems) as refused:
        start.to_resume(done, [], 3)
    assert refused.value.lines == [f"--from: {done.name} has no checkpoint of step 3; it has 2, 4, 6"]
    assert supervise.rollback_to(found.checkpoint, found.faults, done) == []
    kept = {"step_000002", "aside-step_000004", "aside-step_000006"}
    assert {path.name for path in done.checkpoints.iterdir()} == kept, "they are sound, and are kept"
    printed = CliRunner().invoke(app, ["checkpoints", str(done.path)]).stdout
    assert "checkpoints set aside: of step 6, 4;" in CliRunner().invoke(app, ["show", str(done.path)]).stdout
    backs = [line.partition("back: ")[2].partition(";")[0] for line in printed.splitlines() if "back: " in line]
    for command in backs:
        subprocess.run(shlex.split(command), check=True)
    assert {path.name for path in done.checkpoints.iterdir()} == {"step_000002", "step_000004", "step_000006"}
    assert start.to_resume(done, []).is_done, "as before"


def test_a_spec_changed_by_hand_is_refused_and_a_curve_that_ends_elsewhere_is_told(done: Folder) -> None:
    done.spec.write_text(done.spec.read_text().replace("lr_scheduler_type: constant", "lr_scheduler_type: cosine"))
    with pytest.raises(Problems) as refused:
        start.to_resume(done, [])
    assert refused.value.lines[0].startswith(f"{done.spec}: was changed since the run began; put it back; ")
    lock = json.loads(done.lock.read_text())
    done.lock.write_text(json.dumps({**lock, "spec": [sha256(done.spec)]}))
    assert start.to_resume(done, []).notes == []
    (note,) = start.to_resume(done, ["trainer.total_training_steps=8"]).notes
    assert note.startswith("the cosine learning rate now falls until step 8, before until 6: after step 6 it jumps")


def test_where_every_checkpoint_is_damaged_nothing_is_started(done: Folder) -> None:
    for folder in done.checkpoints.iterdir():
        (folder / "trainer.json").write_text("{}")
    with pytest.raises(Problems) as refused:
        start.resume(done, [], [])
    assert refused.value.lines[-1] == f"{done.name}: no checkpoint verifies; start a new run"
    assert len(refused.value.lines) == 4
