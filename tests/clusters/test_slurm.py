"""What is handed over to Slurm, what its script does at each end of a run, and what Slurm answers."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.clusters.slurm import Slurm, SlurmJob, job_of
from launcher.core.problems import Problems
from launcher.spec.engine import Plan, Process
from launcher.spec.hardware import Hardware

CPU, GPUS = Hardware(), Hardware(device="h100", n_gpus_per_node=8, nnodes=4)


def script(cluster: Slurm, hardware: Hardware, folder: Path, begin: str = "true") -> str:
    """The script of a run in this folder, with another command in place of the training."""
    place = shlex.quote(str(folder))
    text = cluster.script("p/r", str(folder), hardware)
    train = f"{sys.executable} -m launcher train --resume {place}"
    assert train in text
    return text.replace(train, begin).replace(f"cd {shlex.quote(os.getcwd())}\n", f"cd {place}\n")


ALL = Slurm(
    partition="gpu", account="me", qos="high", time="1-00:00:00", cpus_per_node=64, mem="0", save_s=300,
    options=("--constraint=h100", "--exclusive"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "hardware", "asked"),
    [
        (Slurm(), CPU, "--nodes=1 --ntasks-per-node=1 --requeue --signal=B:USR1@120"),
        (ALL, GPUS, "--nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --partition=gpu --account=me --qos=high --mem=0 "
         "--time=1-00:00:00 --cpus-per-task=64 --signal=B:USR1@300 --constraint=h100 --exclusive"),
    ],
)  # fmt: skip
def test_what_is_asked_of_slurm(cluster: Slurm, hardware: Hardware, asked: str, tmp_path: Path) -> None:
    text = script(cluster, hardware, tmp_path)
    options = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}
    assert {*asked.split()} <= options and not any("None" in line for line in options)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert ("--head" in text) == (hardware.nnodes > 1), "one node needs no Ray"


@pytest.mark.parametrize(
    ("code", "stopped", "requeued"),
    [
        (0, False, False),  # it is done
        (1, False, False),  # it would fail again
        (143, False, True),  # it saved because it had to leave
        (143, True, False),  # it saved because somebody asked it to
    ],
)
def test_how_a_run_ends_decides_whether_it_waits_again(
    code: int, stopped: bool, requeued: bool, tmp_path: Path, fake_slurm: Path
) -> None:
    folder = tmp_path / "a folder's"  # which has blanks in its name
    folder.mkdir()
    if stopped:
        (folder / "slurm").mkdir()
        (folder / "slurm" / "stop").touch()
    text = script(Slurm(setup=(f"export CODE={code}",)), CPU, folder, "sh -c 'pwd > x; exit $CODE'")
    ran = subprocess.run(["bash"], input=text, text=True, env={**os.environ, "SLURM_JOB_ID": "12"}, check=False)
    assert (ran.returncode, (folder / "x").read_text()) == (code, f"{folder}\n"), "it works in the run's folder"
    assert (folder / "slurm").is_dir()
    assert ("scontrol requeue 12" in (fake_slurm / "calls").read_text()) == requeued


TRAINS = """
import pathlib, signal, sys, time
came = []
signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
pathlib.Path("up").touch()
while not came:
    time.sleep(0.01)
time.sleep(0.3)
pathlib.Path("came").write_text(str(came))
sys.exit(143)
"""


@pytest.mark.parametrize(
    ("number", "all_of_it"),
    [
        (signal.SIGUSR1, False),  # before the time limit: to the script alone, which passes it on
        (signal.SIGTERM, True),  # when the nodes are taken away: to every process, so nothing is passed on
    ],
)
@pytest.mark.usefixtures("fake_slurm")
def test_the_run_is_asked_once(number: int, all_of_it: bool, tmp_path: Path, until: Callable[..., None]) -> None:
    """A second SIGTERM would end it without a checkpoint."""
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "job.sh").write_text(script(Slurm(), CPU, tmp_path, f"{sys.executable} train.py"))
    job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    until((tmp_path / "up").exists)
    (os.killpg if all_of_it else os.kill)(job.pid, number)
    assert job.wait(600) == 143
    assert (tmp_path / "came").read_text() == str([int(signal.SIGTERM)])


def test_handing_over(tmp_path: Path, fake_slurm: Path) -> None:
    name, job = Slurm().submit("p/r", tmp_path, CPU), SlurmJob("12", tmp_path)
    text = (tmp_path / "slurm" / "job.sh").read_text()
    assert f"-m launcher train --resume {tmp_path} " in text, "the same at every start"
    assert job == job_of(tmp_path) and name == job.name == "slurm job 12"
    assert job.queue_status() == "", "Slurm has forgotten it"
    for standing, status in (
        ("PENDING|Resources|\n", "pending (Resources)"),
        ("RUNNING|None|node-[1-4]\n", "running on node-[1-4]"),
        ("", ""),  # it has left the queue
    ):
        (fake_slurm / "standing").write_text(standing)
        assert job.queue_status() == status


@pytest.mark.parametrize(
    ("standing", "now", "call"),
    [
        ("RUNNING|None|n", False, "scancel --signal=USR1 --batch 12"),  # to save
        ("RUNNING|None|n", True, "scancel 12"),
        ("PENDING|Priority|", False, "scancel 12"),  # nothing to save
    ],
)
def test_stopping(standing: str, now: bool, call: str, tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "standing").write_text(standing)
    Slurm().submit("p/r", tmp_path, CPU)
    job = SlurmJob("12", tmp_path)
    assert not job.stopped
    job.stop(now)
    assert job.stopped and (fake_slurm / "calls").read_text().splitlines()[-1] == call
    Slurm().submit("p/r", tmp_path, CPU)
    assert not job.stopped, "one that goes on is not asked to end"


def test_what_slurm_refuses_is_said(tmp_path: Path, fake_slurm: Path) -> None:
    (fake_slurm / "refuses").write_text(
        "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition\n"
    )
    with pytest.raises(Problems) as caught:
        Slurm(partition="x").submit("p/r", tmp_path, CPU)
    assert caught.value.lines[0].startswith("sbatch: Batch job submission failed: Invalid partition; ")
    assert job_of(tmp_path) is None


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RLRUN_SLURM", raising=False)
    (problem,) = Slurm().missing_requirements(CPU)
    assert str(problem).startswith("cluster: slurm's sbatch, squeue, scancel, scontrol not found here; ")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "job.json").write_text('{"id": "12"}')
    assert job_of(tmp_path) is None, "a run's folder that was copied here can be looked at"


def test_in_the_allocation_processes_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Slurm().queues
    monkeypatch.setenv("RLRUN_SLURM", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert not Slurm().queues and Slurm().missing_requirements(CPU) == []
    lock = os.open(tmp_path / ".lock", os.O_CREAT | os.O_RDWR)
    job = Slurm().start(Plan((Process(0, (sys.executable, "-c", "print('here')")),)), tmp_path, lock)
    output, give_up = list[str](), time.monotonic() + 20
    while job.exit_code() is None and time.monotonic() < give_up:
        output += job.lines()
    assert job.exit_code() == 0 and [*output, *job.lines()] == ["here"]


def test_a_value_is_one_word_or_a_number() -> None:
    found = Slurm(time=120, mem=0)
    assert (found.time, found.mem) == ("120", "0")
    for bad in ("a b", ""):
        with pytest.raises(ValueError, match="partition"):
            Slurm(partition=bad)
