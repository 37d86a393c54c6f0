"""Detached runs as jobs of a real Ray cluster."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.nodes import processes
from launcher.clusters.nodes.home import Home, Node
from launcher.clusters.nodes.processes import MARK, serves_jobs
from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.core.redaction import register_secret
from launcher.launch import job
from launcher.preflight.plan import Ready
from launcher.runs.folder import Folder, holder

ON_RAY = ["cluster=ray", "cluster.address=auto"]
ENDLESS = ["trainer.test_freq=-1", "trainer.total_training_steps=100000", "trainer.save_freq=1000"]
LONG = ["algorithm=sft", *ON_RAY, *ENDLESS]
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
    assert "submitted as Ray job rlrun-rlrun-job-" in begun.stderr
    (address,) = re.findall(rf"rlrun watch {run} --cluster (\S+:\d+)\n", begun.stdout)
    assert not list(run.glob(".detached-*")), "its words are nobody's business any more"
    who = holder(Folder(run))
    assert who and not any("ray::" in words for words in ancestors(int(who["pid"]))), "Ray ends its jobs' children"
    its = psutil.Process(int(who["pid"])).environ()
    assert not {"OMP_NUM_THREADS", MARK, "PYTHONBREAKPOINT"} & its.keys() and its["HF_HOME"] == "/of/this/shell"
    remote = head("logs", "-f", str(run), "--cluster", address, cwd="/")
    assert remote.returncode == 0 and remote.stdout == (run / "console.log").read_text(), remote.stderr
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
    assert "runs in the background" not in refused.stdout and not list(head.run("bad").glob(".detached-*"))


@pytest.mark.slow
@takes_jobs
def test_it_outlives_the_head(head: Any, small: list[str], until: Callable[..., None], result: Any) -> None:
    """It goes on once the head is there again."""
    words = [*small, "algorithm=sft", "trainer.test_freq=-1", "trainer.total_training_steps=400"]
    name = "trainer.experiment_name=lives"
    begun = head("train", "-d", *words, *ON_RAY, "trainer.save_freq=20", name)
    assert begun.returncode == 0, begun.stderr
    run = head.run("lives")
    until(lambda: list(run.glob("checkpoints/step_*")))
    node = Home(head.folder / "cluster").node()
    (server,) = [one for one in processes.find(node) if one.name() == "gcs_server"]
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
        monkeypatch.setattr(processes, "serves_jobs", lambda can=can: can)
        words = {f"--include-dashboard={str(can).lower()}", "--dashboard-host=127.0.0.1"}
        assert words <= {*processes.start_argv(node)}


def test_where_no_job_can_be_submitted_that_is_said(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the plan does not look whether the cluster is there."""
    monkeypatch.setenv("RLRUN_CLUSTER", str(tmp_path / "none"))
    monkeypatch.setattr(job, "ready_from", lambda words, _: Ready(resolve(words), []))
    words = [*small, "algorithm=sft", "cluster=ray", "cluster.address=127.0.0.1:9"]

    def begin(folder: Path) -> None:
        job.submit(job.StartRequest((*words, f"trainer.run_root={folder}", "trainer.experiment_name=r")))

    monkeypatch.setattr(job, "serves_jobs", lambda: False)
    with pytest.raises(Problems, match=r"-d: ray\[default\] is not installed, .*; leave out -d, or pip install"):
        begin(tmp_path / "own")
    monkeypatch.setattr(job, "serves_jobs", lambda: True)
    with pytest.raises(Problems, match=r"cluster: 127\.0\.0\.1:9: connection refused; use rlrun cluster up"):
        begin(tmp_path / "runs")
    assert not list(tmp_path.iterdir()), "before anything is written"


def test_a_secret_among_the_words_of_a_job_is_refused_before_anything_is_written(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an argument, in a config file's name of the run, or in the name of the working directory."""
    monkeypatch.setattr(job, "serves_jobs", lambda: True)
    monkeypatch.setattr(job, "ready_from", lambda words, _: Ready(resolve(words), []))
    register_secret(secret := "tmp-9f8e7d6c5b4a3210")
    (tmp_path / secret).mkdir()
    words = [*small, "algorithm=sft", "cluster=ray", "cluster.address=127.0.0.1:9"]
    for folder, root in ((tmp_path, f"{tmp_path}/{secret}/runs"), (tmp_path / secret, "runs")):
        monkeypatch.chdir(folder)
        with pytest.raises(Problems, match=r"an argument, or this folder's name, is a secret, .*; use an environment"):
            job.submit(job.StartRequest((*words, f"trainer.run_root={root}")))
    assert [*tmp_path.rglob("*")] == [tmp_path / secret]
