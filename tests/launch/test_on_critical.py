"""What follows from a critical finding: nothing, a checkpoint and a pause, or the end. The runs are real ones, of an
untrained model none of whose answers is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.core.checkpoints import newest_first
from launcher.core.events import Alert, Ended, Step, events_of
from launcher.runs.folder import Folder

STEPS = 40
WORDS = [
    "algorithm=grpo", "sampler.n=4", "data.train_batch_size=8", "data.n_prompts=64", "trainer.val_before_train=false",
    f"trainer.total_training_steps={STEPS}",
]  # fmt: skip


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    return commands(tmp_path_factory.mktemp("home"))


def trained(rlrun: Any, small: list[str], what: str) -> tuple[Any, Folder]:
    ran = rlrun("train", *small, *WORDS, f"health.on_critical={what}", f"trainer.experiment_name={what}")
    return ran, Folder(Path(rlrun.run(what)))


def of_kind(folder: Folder, kind: type) -> list[Any]:
    return [event for event in events_of(folder.events) if isinstance(event, kind)]


def test_pause_saves_and_stops_and_the_run_can_go_on(rlrun: Any, small: list[str]) -> None:
    ran, folder = trained(rlrun, small, "pause")
    assert ran.returncode == 143, ran.stderr
    critical = [alert for alert in of_kind(folder, Alert) if alert.level == "critical"]
    assert [alert.rule for alert in critical] == ["no-signal"] and "sampler.n=8" in critical[0].fix
    (ended,), last = of_kind(folder, Ended), of_kind(folder, Step)[-1].step
    assert ended.how == "stopped" and ended.why.startswith(f"paused by no-signal at step {critical[0].step}: ")
    assert critical[0].step <= last < STEPS
    assert ended.following[:2] == ("rerun", "sampler.n=8"), "which may not change when the run goes on"
    assert "next: rlrun rerun " in ran.stderr and "--resume" not in ran.stderr
    assert newest_first(folder.checkpoints)[0].name == f"step_{last:06d}"
    again = rlrun("train", "--resume", folder.path)
    assert again.returncode == 0, again.stderr  # the finding is known, and stops it no second time
    assert of_kind(folder, Step)[-1].step == STEPS


def test_stop_ends_at_once_without_a_checkpoint(rlrun: Any, small: list[str]) -> None:
    ran, folder = trained(rlrun, small, "stop")
    assert ran.returncode == 1 and "stopped by no-signal at step" in ran.stderr
    (ended,) = of_kind(folder, Ended)
    assert ended.how == "failed" and not newest_first(folder.checkpoints)
