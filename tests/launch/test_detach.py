"""Runs that go on without the terminal they were typed in, through the real command line."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.config.resolve import resolve
from launcher.runs.folder import Folder, holder
from launcher.spec.stored import to_yaml
from tests.launch.conftest import check_printed, state_of, steps_told

ENDLESS = ["algorithm=sft", "trainer.total_training_steps=100000", "trainer.test_freq=-1"]


@pytest.mark.slow
def test_it_goes_on_by_itself_until_it_is_stopped(rlrun: Any, small_sft: list[str], until: Callable[..., None]) -> None:
    ran = rlrun("train", "-d", *small_sft, *ENDLESS)
    assert (ran.returncode, ran.stderr) == (0, "")
    (run,) = (rlrun.folder / "runs" / "rlrun").iterdir()
    assert ran.stdout.splitlines() == [
        f"rlrun/{run.name} runs in the background",
        *(f"  rlrun {command} runs/rlrun/{run.name}" for command in ("watch", "status", "logs -f", "stop")),
    ]
    pid = int(holder(Folder(run))["pid"])  # it was returned from once somebody was at it
    assert os.getsid(pid) == pid, "a terminal that is closed ends its own session's processes"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert run / "detached.log" == Path(os.readlink(f"/proc/{pid}/fd/1")) == Path(os.readlink(f"/proc/{pid}/fd/2"))
    assert stat.S_IMODE((run / "detached.log").stat().st_mode) == 0o600
    held = rlrun.here("train", "-d", "--resume", run.name)
    assert held.returncode == 2
    assert re.fullmatch(rf"✗ rlrun/{run.name}: is being written by process \d+ on \S+; rlrun stop .+\n", held.stderr)
    until(lambda: steps_told(run) > 3)
    assert rlrun.here("stop", run.name).returncode == 0
    first = state_of(run)
    *shown, following = (run / "detached.log").read_text().splitlines()
    assert first.status == "stopped"
    check_printed(shown, run)
    assert following == f"next: rlrun train --resume runs/rlrun/{run.name}"


# ---- what is refused


SFT = ["algorithm=sft", "model=tiny", "data=reverse"]
REFUSED = [
    (["-d", *SFT, "data.train_batch_size=7000"], "✗ data.train_batch_size: got 7000"),
    (["--resume", "r", "--dry-run"], "✗ --dry-run: is for a new run; leave it out"),
    (["-d", "-m", *SFT, "seed=0,1", "optim.lr=x"], "✗ optim.lr"),
    (["-m", *SFT, "optim.lr=1e-2,fast"], "✗ optim.lr=fast: optim.lr: got 'fast'; use a number"),
    (["-m", *SFT, "seed=0,1", "--resume", "none"], "✗ --resume: no sweep 'none' in runs; use -m alone to start one"),
]


@pytest.mark.parametrize(("words", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_can_be_refused_is_before_anything_is_made(words: list[str], line: str, rlrun: Any) -> None:
    ran = rlrun.here("train", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert any(each.startswith(line) for each in ran.stderr.splitlines()), ran.stderr
    assert not (rlrun.folder / "runs").exists()


def test_what_only_the_new_process_can_refuse_is_said_here(rlrun: Any, small: list[str]) -> None:
    run = rlrun.run("other")
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(resolve([*small, "algorithm=sft"])))
    (run / "lock.json").write_text("{}")
    ran = rlrun.here("train", "-d", "--resume", "other")
    assert (ran.returncode, ran.stdout) == (2, "")
    line = "✗ data: is not what the run began with (its sha256 differs); use the original data\n"
    assert ran.stderr == line == (run / "detached.log").read_text()
    assert rlrun.here("train", "-d", "--resume", "other").stderr == line, "and not what stood there before"


def test_ctrl_c_before_it_is_taken_up_ends_it(rlrun: Any, small: list[str], until: Callable[..., None]) -> None:
    """The run waits for processes of an earlier one that still hold it."""
    run = rlrun.run("held")
    run.mkdir(parents=True)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = rlrun.begin("train", "-d", *small, *ENDLESS, "trainer.experiment_name=held")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text())
        child = int(children.read_text())
        until(lambda: any(file.path.endswith("/.lock") for file in psutil.Process(child).open_files()))
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
        assert not Path(f"/proc/{child}").exists()
    assert not (run / "spec.yaml").exists()


@pytest.mark.slow
def test_a_run_that_waits_in_a_queue_needs_no_terminal(
    rlrun: Any, small: list[str], fake_slurm: Path, until: Callable[..., None]
) -> None:
    (fake_slurm / "standing").write_text("PENDING|Resources|\n")
    words = [*small, "algorithm=sft", "cluster=slurm", "trainer.experiment_name=queued"]
    begun = rlrun.here("train", "-d", *words)
    assert begun.returncode == 0 and "rlrun/queued runs in the background" in begun.stdout, begun.stderr
    again = rlrun.here("train", "-d", "--resume", "queued")
    assert again.returncode == 2 and "is slurm job 12, pending (Resources)" in again.stderr
    assert rlrun.here("stop", "queued").stdout == "rlrun/queued: stopped, and slurm job 12 has left the queue\n"
