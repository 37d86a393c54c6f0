"""Detached runs as jobs of a real Ray cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.nodes import processes, ray_start
from launcher.clusters.nodes.home import Home, Node
from launcher.clusters.nodes.processes import DETACHED
from launcher.clusters.nodes.ray_start import MARK, serves_jobs
from launcher.clusters.ray import handed
from launcher.clusters.ray.handed import NO_JOBS
from launcher.core.redaction import register_secret
from launcher.launch import detach
from launcher.preflight.plan import Ready
from launcher.runs.folder import Folder, holder

ON_RAY = ["cluster=ray", "cluster.address=auto"]
LONG = ["algorithm=sft", *ON_RAY, "trainer.test_freq=-1", "trainer.total_training_steps=3000", "trainer.save_freq=1000"]
takes_jobs = pytest.mark.skipif(not serves_jobs(), reason="needs ray[default]: make test-jobs")


def ancestors(pid: int) -> list[str]:
    return [" ".join(process.cmdline()) for process in psutil.Process(pid).parents()]


@pytest.mark.slow
@takes_jobs
def test_a_detached_run_is_a_job_of_its_cluster(
    head: Any, small: list[str], until: Callable[..., None], result: Any
) -> None:
    words = [*small, "algorithm=sft", "trainer.test_freq=-1", "trainer.total_training_steps=40"]
    shell = {**os.environ, "HF_HOME": "/of/this/shell", "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:1"}
    begun = head("train", "-d", *words, *ON_RAY, "trainer.experiment_name=job", env=shell)
    assert begun.returncode == 0, begun.stderr
    run = head.run("job")
    assert "handed over as Ray job rlrun-rlrun-job-" in begun.stderr
    (address,) = re.findall(rf"rlrun watch {run} --cluster (\S+:\d+)\n", begun.stdout)
    assert not list(run.glob(".detached-*")), "its words are nobody's business any more"
    who = holder(Folder(run))
    assert who and not any("ray::" in words for words in ancestors(int(who["pid"]))), "Ray ends its jobs' children"
    its = psutil.Process(int(who["pid"])).environ()
    assert not {"OMP_NUM_THREADS", MARK, "PYTHONBREAKPOINT"} & its.keys() and its["HF_HOME"] == "/of/this/shell"
    far = head("logs", "-f", str(run), "--cluster", address, cwd="/")
    assert far.returncode == 0 and far.stdout == (run / "console.log").read_text(), far.stderr
    assert head("train", *words, "trainer.experiment_name=here").returncode == 0
    assert result(run, 40) == result(head.run("here"), 40)


@pytest.mark.slow
@takes_jobs
def test_it_is_stopped_and_goes_on(head: Any, small: list[str], until: Callable[..., None]) -> None:
    assert head("train", "-d", *small, *LONG, "trainer.experiment_name=on").returncode == 0
    run, root = head.run("on"), f"--root={head.folder / 'runs'}"

    def status() -> Any:
        return json.loads(head("status", "on", root, "--json", "--cluster", "auto", cwd="/").stdout)

    until(lambda: status()["step"] > 0)
    assert status()["status"] == "running"
    refused = head("train", "-d", "--resume", str(run))
    assert refused.returncode == 2 and "is being written by process" in refused.stderr
    stopped = head("stop", "on", root, "--cluster", "auto", cwd="/")
    assert stopped.returncode == 0 and stopped.stdout == "rlrun/on: stopped\n", stopped.stderr
    assert status()["status"] == "stopped" and list(run.glob("checkpoints/step_*"))
    before = status()["step"]
    assert head("train", "-d", "--resume", str(run)).returncode == 0
    until(lambda: status()["step"] > before)
    head("stop", str(run))


@pytest.mark.slow
@takes_jobs
def test_a_job_that_is_refused_says_why(head: Any, small: list[str]) -> None:
    words = [*small, *LONG, "trainer.experiment_name=bad", "data.train_batch_size=65"]
    refused = head("train", "-d", *words)
    assert refused.returncode == 2 and "data.train_batch_size: got 65" in refused.stderr, refused.stderr
    assert "goes on by itself" not in refused.stdout and not list(head.run("bad").glob(".detached-*"))


@pytest.mark.slow
@takes_jobs
def test_it_outlives_the_head(head: Any, small: list[str], until: Callable[..., None], result: Any) -> None:
    """The job dies with it; the run does not, and goes on once the head is there again."""
    words = [*small, "algorithm=sft", "trainer.test_freq=-1", "trainer.total_training_steps=400"]
    name = "trainer.experiment_name=lives"
    begun = head("train", "-d", *words, *ON_RAY, "trainer.save_freq=20", name)
    assert begun.returncode == 0, begun.stderr
    run = head.run("lives")
    until(lambda: list(run.glob("checkpoints/step_*")))
    node = Home(head.folder / "cluster").node()
    (server,) = [one for one in processes.of(node) if one.name() == "gcs_server"]
    who = holder(Folder(run))
    server.kill()
    until(lambda: (run / "events.jsonl").read_text().count('"Restarted"'), 120)
    assert holder(Folder(run)) == who, "the same process, which starts everything anew"
    until(lambda: holder(Folder(run)) is None, 120)
    assert head("train", *words, "trainer.save_freq=20", "trainer.experiment_name=calm").returncode == 0
    assert result(run, 400) == result(head.run("calm"), 400)


def test_a_head_takes_jobs_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("127.0.0.1:7", "127.0.0.1", True, "mark", str(tmp_path))
    for can in (True, False):
        monkeypatch.setattr(ray_start, "serves_jobs", lambda can=can: can)
        assert {f"--include-dashboard={str(can).lower()}", "--dashboard-host=127.0.0.1"} <= set(ray_start.argv(node))


def test_what_a_job_is_given_and_what_it_keeps() -> None:
    shell = {"HF_HOME": "/h", "HF_TOKEN": "x", "RLRUN_CLUSTER": "/c", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/me"}
    assert handed._carried(shell) == {"HF_HOME": "/h"}
    job = {"OMP_NUM_THREADS": "1", MARK: "m", "RAY_ADDRESS": "a", "RAY_CLIENT_MODE": "0", "CUDA_VISIBLE_DEVICES": ""}
    kept = {"RAY_ADDRESS": "a", "HF_HOME": "/h", "PYTHONUNBUFFERED": "1"}
    assert handed.environment({**job, "HF_HOME": "/head"}, {"HF_HOME": "/h"}) == kept
    assert handed.environment({"CUDA_VISIBLE_DEVICES": "1"}, {})["CUDA_VISIBLE_DEVICES"] == "1"


def as_job(folder: Path, **node: Any) -> subprocess.Popen[bytes]:
    file = folder / ".detached-x.json"
    file.write_text(
        json.dumps({"words": ["json.tool", "--help"], "cwd": str(folder), "env": {}, "umask": 0o022} | node)
    )
    return subprocess.Popen([sys.executable, "-P", "-m", "launcher.clusters.ray.handed", str(file)])


def test_the_job_ends_as_its_command_does(tmp_path: Path) -> None:
    assert as_job(tmp_path).wait(20) == 0 and "json" in (tmp_path / "detached.log").read_text()
    assert not list(tmp_path.glob(".detached-*"))
    assert as_job(tmp_path, words=["json.tool", "/no/such/file"]).wait(20) == 2
    assert as_job(tmp_path, cwd="/no/such/folder").wait(20) == 2
    assert "✗ /no/such/folder, on the head: no such file" in (tmp_path / "detached.log").read_text()


def test_its_command_is_let_end_by_itself(tmp_path: Path, until: Callable[..., None]) -> None:
    (tmp_path / "slow.py").write_text(
        "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(0.5), sys.exit(143)))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    log = tmp_path / "detached.log"
    job = as_job(tmp_path, words=["slow"], env={"PYTHONPATH": str(tmp_path)})
    until(lambda: log.exists() and "up" in log.read_text(), 20)
    assert not psutil.Process(job.pid).children(), "which Ray would end with it"
    begun = [sys.executable, "-P", "-m", "slow"]
    (slow,) = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == begun]
    assert slow.environ()[DETACHED] == "1"
    job.terminate()
    assert job.wait(20) == 143


def test_a_command_that_is_killed_is_told(tmp_path: Path, until: Callable[..., None]) -> None:
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 9)")
    assert as_job(tmp_path, words=["dies"], env={"PYTHONPATH": str(tmp_path)}).wait(20) == 137


@pytest.mark.slow
@pytest.mark.skipif(serves_jobs(), reason="this cluster has a job server")
def test_without_a_job_server_it_is_a_process_of_this_machine(head: Any, small: list[str]) -> None:
    begun = head("train", "-d", *small, *LONG, "trainer.experiment_name=own")
    assert begun.returncode == 0 and "takes no such job" in begun.stderr, begun.stderr
    assert "so it becomes a process of this machine" in begun.stderr and "--cluster" not in begun.stdout
    head("stop", "--now", str(head.run("own")))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """How handing over ends, to a cluster that is well."""
    monkeypatch.setattr(detach, "ready", lambda run: Ready(run, []))

    def set_to(code: int) -> None:
        process = ["sh", "-c", f"echo why; exit {code}"]
        hand_over = lambda folder, words, address, log: subprocess.Popen(process, stdout=log)
        monkeypatch.setattr(detach, "hand_over", hand_over)

    return set_to


def begin(small: list[str], folder: Path, said: list[str]) -> detach.Detached:
    words = [*small, "algorithm=sft", "cluster=ray", "cluster.address=127.0.0.1:9", f"trainer.run_root={folder}"]
    return detach.begin([*words, "trainer.experiment_name=r"], None, said.append)


def test_a_cluster_that_takes_no_jobs(
    small: list[str], tmp_path: Path, ends: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this machine then, which finds nobody at that address here."""
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "none"))
    ends(NO_JOBS)
    said: list[str] = []
    begun = begin(small, tmp_path, said)
    assert said[:2] == ["why", "so it becomes a process of this machine"]
    assert begun.exit_code == 2 and begun.cluster is None and "127.0.0.1:9" in said[-1]


def test_a_word_that_is_a_secret_stays_here(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[int], None]
) -> None:
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "none"))
    ends(NO_JOBS)
    monkeypatch.setattr(detach, "hand_over", handed.hand_over)
    register_secret("tmp-9f8e7d6c5b4a3210")
    said: list[str] = []
    begin(small, tmp_path / "tmp-9f8e7d6c5b4a3210", said)
    assert said[:2] == [
        "one of the words is a secret, which no file may hold",
        "so it becomes a process of this machine",
    ]
    assert not list(tmp_path.rglob(".detached-*"))
