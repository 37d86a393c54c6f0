"""What is said of a run's checkpoints. The folders are made by hand; nothing is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.core import checkpoints
from launcher.core.events import Event, Saved, Step, to_line
from launcher.core.problems import Problems
from launcher.runs import kept_checkpoints as keeping
from launcher.runs.folder import Folder

REWARD, LOSS = "val-core/maths/reward/mean@1", "val/loss"
Made = Callable[..., Folder]


@pytest.fixture
def run(tmp_path: Path) -> Made:
    """A run with checkpoints of steps 2, 4, 6: 4 is best by the reward, 6 by the loss, and 2 was not validated."""

    def make(metric: str | None = None) -> Folder:
        folder = Folder(tmp_path / "runs" / "p" / "r")
        folder.path.mkdir(parents=True)
        folder.spec.write_text(f"trainer: {{best_metric: {metric or 'null'}}}\n")
        measured = {4: {REWARD: 0.75, LOSS: 2.0}, 6: {REWARD: 0.5, LOSS: 1.0}}
        events: list[Event] = []
        for step in (2, 4, 6):
            seen = {"step": step if step in measured else None, "metrics": measured.get(step, {})}
            text = json.dumps({"step": step, "validated": seen})
            checkpoints.write(folder.checkpoints, step, lambda at, text=text: (at / "trainer.json").write_text(text))
            metrics = {"train/loss": 3.0 - step / 10, "train/lr": 1.0, **measured.get(step, {})}
            events += [Step(at=10.0 * step, step=step, metrics=metrics), Saved(at=10.0 * step + 1, step=step, path="x")]
        folder.events.write_text("".join(to_line(event) + "\n" for event in events))
        return folder

    return make


def spoil(folder: Folder, step: int) -> None:
    path = folder.checkpoints / checkpoints.name_of(step) / "trainer.json"
    path.write_text(path.read_text().replace("step", "stop"))


def test_each_is_told_with_what_was_measured_of_it(run: Made) -> None:
    six, four, two = keeping.kept(run())
    assert [one.step for one in (two, four, six)] == [2, 4, 6]
    assert four.metrics == {REWARD: 0.75, LOSS: 2.0, "train/loss": 2.6} and four.judged == (REWARD, 0.75)
    assert two.metrics == {"train/loss": 2.8} and two.judged is None  # not validated, so without a score
    assert (four.at, four.faults) == (41.0, ())
    assert four.bytes == sum(path.stat().st_size for path in four.path.iterdir()) > 0
    assert [(one.newest, one.best) for one in (two, four, six)] == [(False, False), (False, True), (True, False)]


@pytest.mark.parametrize(("of_run", "best"), [(None, 4), (REWARD, 4), (LOSS, 6)])
def test_the_best_is_by_the_runs_own_metric(of_run: str | None, best: int, run: Made) -> None:
    """Of a loss, less is more; without a metric of its own it is the main score that counts."""
    assert keeping.best(run(of_run)).step == best


def test_a_damaged_one_is_named_and_is_neither_newest_nor_best(run: Made) -> None:
    folder = run()
    spoil(folder, 4)
    spoil(folder, 6)
    six, four, two = keeping.kept(folder)
    assert tuple(map(str, four.faults)) == (
        "step_000004/trainer.json: its bytes changed since it was written (sha256 differs)",
    )
    assert two.newest and not any(one.best for one in (two, four, six))
    assert keeping.newest(folder).step == 2
    with pytest.raises(Problems) as found:
        keeping.best(folder)
    assert found.value.lines[0] == (
        "p/r: no checkpoint that verifies has a score; use a trainer.test_freq that divides trainer.save_freq"
    )
    assert [line.partition(":")[0] for line in found.value.lines[1:]] == [
        f"p/r/checkpoints/step_00000{step}/trainer.json" for step in (6, 4)
    ]
    assert keeping.kept(folder, verify=False)[0].faults is None  # nobody looked


def test_a_checkpoint_alone_knows_how_good_it_is(run: Made) -> None:
    folder = run()
    folder.events.unlink()
    folder.spec.unlink()
    assert keeping.best(folder).step == 4
    assert keeping.best(folder).at == pytest.approx(folder.checkpoints.stat().st_mtime, abs=60)


def test_what_is_not_there_is_named(run: Made) -> None:
    folder = run()
    spoil(folder, 2)
    for step, line in (
        (3, "--step: p/r has no checkpoint of step 3; it has 2, 4, 6"),
        (2, "--step: the checkpoint of step 2 does not verify; use another"),
    ):
        with pytest.raises(Problems) as found:
            keeping.of_step(folder, step)
        assert found.value.lines[0] == line
    shutil.rmtree(folder.checkpoints)
    assert keeping.kept(folder) == []
    for ask in (keeping.best, keeping.newest):
        with pytest.raises(Problems, match=r"use a (trainer.test_freq|run that saved one)"):
            ask(folder)
