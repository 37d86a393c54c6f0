"""Whole sweeps through the real command line: finished, refused, interrupted in every way, and gone on with.

A point costs about four CPU seconds, because torch is loaded; so they are shared.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.core.checkpoints import faults
from launcher.launch import sweep as points
from launcher.runs import store
from launcher.runs.folder import Folder, holder
from tests.launch.conftest import check_printed, state_of, steps_told

pytestmark = pytest.mark.slow

LONG = ["algorithm=sft", "trainer.total_training_steps=100000", "trainer.save_freq=20",
        "trainer.micro_batch_size_per_gpu=1", "trainer.max_restarts=0"]  # fmt: skip
SWEEP = "sft-llama-16x1-sweep1"


def views(rlrun: Any, name: str = SWEEP) -> list[points.View]:
    return points.views(points.read(rlrun.run(name)))


def statuses(rlrun: Any, name: str = SWEEP) -> list[str]:
    return [view.entry.status for view in views(rlrun, name)]


def test_points_run_side_by_side_and_are_told_apart(rlrun: Any, small: list[str]) -> None:
    words = [*small, "algorithm=sft,grpo", "optim.lr=1e-2", "trainer.total_training_steps=2"]
    ran = rlrun("train", "-m", *words, "--parallel", "2", "trainer.experiment_name=both")
    assert ran.returncode == 0, ran.stderr
    assert statuses(rlrun, "both-sweep1") == ["finished", "finished"]
    sweep = rlrun.run("both-sweep1")
    for name in ("sft", "grpo"):
        run = rlrun.run(f"both-sweep1-{name}")
        state = state_of(run)
        assert (state.status, state.step, state.algorithm.lower()) == ("finished", 2, name)
        output = [line.removeprefix(f"[{name}] ") for line in ran.stdout.splitlines() if line.startswith(f"[{name}] ")]
        printed = [line for line in output if not line.startswith(("! ", "✗ ", "next: "))]  # these are not in the log
        check_printed(printed, run)  # whole lines, in order, none of another's
        assert (run / "words.txt").read_text().endswith(f"experiment_name=both-sweep1-{name}\n")
    states = [state_of(rlrun.run(f"both-sweep1-{name}")) for name in ("sft", "grpo")]
    assert max(state.started_at for state in states) < min(state.last_at for state in states), "both ran at a time"
    first, *rows = ran.stdout.splitlines()[-3:]
    assert first.split() == ["point", "status", "step", "held", "out", "time", "folder"]
    assert [row.split()[:3] for row in rows] == [["sft", "finished", "2/2"], ["grpo", "doubtful", "2/2"]]
    assert stat.S_IMODE(sweep.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in sweep.iterdir())
    listed = {run.folder.name for run in store.every(rlrun.folder / "runs")}
    assert listed == {"rlrun/both-sweep1-sft", "rlrun/both-sweep1-grpo"}  # the sweep itself is no run
    before = steps_told(rlrun.run("both-sweep1-sft"))
    again = points.drive(points.read(sweep), lambda *_: None)
    assert (again, steps_told(rlrun.run("both-sweep1-sft"))) == (0, before), "what is done stays"


POINTS = ["seed=0,1,2", "--parallel", "2"]


@pytest.fixture
def runs(rlrun: Any) -> list[Path]:
    return [rlrun.run(f"{SWEEP}-seed_{seed}") for seed in range(3)]


def test_a_sweep_goes_on_without_a_point_that_failed_until_it_is_stopped(
    rlrun: Any, small: list[str], runs: list[Path], until: Callable[..., None]
) -> None:
    """Three points, two at a time, of which one loses its training process."""
    words = [*small, *LONG, *POINTS]
    sweep = Folder(rlrun.run(SWEEP))

    process = rlrun.begin("train", "-m", *words)
    until(lambda: holder(sweep))
    refused = rlrun.here("train", "--resume", SWEEP)  # while torch is being loaded
    assert refused.returncode == 2 and "is being written by process" in refused.stderr, "one writer for a sweep"
    until(lambda: steps_told(runs[0]) >= 3 and steps_told(runs[1]) >= 3)
    of_first = psutil.Process(holder_of(runs[0])).children()
    (trainer,) = [child for child in of_first if "launcher.engines.torch.worker" in child.cmdline()]
    trainer.kill()  # the training process of one point
    until(lambda: steps_told(runs[2]) >= 3)  # the others go on, and the next one begins
    ran = rlrun.here("stop", SWEEP)
    assert (ran.returncode, ran.stdout) == (0, f"rlrun/{SWEEP}: stopped\n")
    assert process.wait(timeout=600) == 143
    assert statuses(rlrun) == ["failed", "stopped", "stopped"]
    assert "killed by SIGKILL" in views(rlrun)[0].entry.why
    for run in runs[1:]:
        state = state_of(run)
        assert state.checkpoint == f"checkpoints/step_{state.step:06d}" and not faults(run / state.checkpoint)
    other = rlrun.here("train", "-m", *words[:-3], "seed=7,8", "--resume", SWEEP)
    assert other.returncode == 2 and "was started with other arguments" in other.stderr


@pytest.mark.long
def test_a_sweep_that_was_stopped_goes_on_until_it_is_killed(
    rlrun: Any, small: list[str], runs: list[Path], until: Callable[..., None]
) -> None:
    test_a_sweep_goes_on_without_a_point_that_failed_until_it_is_stopped(rlrun, small, runs, until)
    words, sweep = [*small, *LONG, *POINTS], Folder(rlrun.run(SWEEP))
    second, before = state_of(runs[1]).step, steps_told(runs[0])

    # the same words again will do
    ran = rlrun("train", "-d", "-m", *words[:-2], "--resume", SWEEP, "--parallel", "1")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, f"rlrun/{SWEEP} runs in the background"), ran.stderr
    watched = rlrun.here("watch", SWEEP)
    assert watched.returncode == 2 and "is a sweep; use rlrun status" in watched.stderr
    until(lambda: steps_told(runs[0]) >= before + 3)
    driver = holder_of(sweep.path)
    (point,) = psutil.Process(driver).children()
    os.kill(driver, signal.SIGKILL)
    until(lambda: holder(sweep) is None)  # its points hold its lock as long as they live
    assert not point.is_running() or point.status() == psutil.STATUS_ZOMBIE, "no process is left behind"
    state = state_of(runs[0])
    assert state.status == "stopped" and not faults(runs[0] / state.checkpoint), "saved, as when it is asked to"
    assert statuses(rlrun) == ["stopped", "waiting", "waiting"] and state_of(runs[1]).step == second


def holder_of(run: Path) -> int:
    return int(holder(Folder(run))["pid"])
