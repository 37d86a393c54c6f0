"""Runs on Ray: the same numbers as plain processes, and every end of one leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from launcher.clusters.ray.listing import head_address
from launcher.core.events import Usage, events_of
from launcher.core.state import fold
from tests.clusters.conftest import of_ray

OUTSIDE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""Where no process of this machine is seen, so no node of Ray's either."""
has_outside = shutil.which("unshare") and not subprocess.run([*OUTSIDE, "true"], capture_output=True).returncode
Until = Callable[..., None]


@pytest.mark.slow
def test_a_run_on_ray_ends_as_plain_processes_do_however_often_it_is_stopped(
    head: Any, small: list[str], result: Any, until: Until
) -> None:
    """Two processes; the launcher is killed, and after a resume asked to stop."""
    mine = head.folder / "mine"
    mine.mkdir()  # a reward of one's own and its neighbour, by a path from the working directory
    (mine / "my.py").write_text("from helpers import shared as f\n")
    (mine / "helpers.py").write_text(
        "import os, time\ndef shared(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    time.sleep(0.05 if os.path.exists('slow') else 0)\n"
        "    return len(set(solution_str) & set(ground_truth)) / 10\n"
    )
    words = [
        *small, "reward=mine/my.py:f", "algorithm=grpo", "hardware.nproc_per_node=2", "trainer.total_training_steps=6",
        "trainer.save_freq=1", "cluster.usage_s=0.2",
    ]  # fmt: skip
    plain = head("train", *words, "trainer.experiment_name=local")
    assert plain.returncode == 0, plain.stderr
    run = head.run("ray")

    def reached_step(step: int) -> bool:
        return (run / "events.jsonl").exists() and fold(events_of(run / "events.jsonl")).step >= step

    def workers() -> list[psutil.Process]:
        lines = ((each, " ".join(each.info["cmdline"] or [])) for each in psutil.process_iter(["cmdline"]))
        return [each for each, line in lines if "launcher.engines.torch.worker" in line and "rlrun/ray" in line]

    (head.folder / "slow").touch()
    killed = head.begin("train", *words, "cluster=ray", "trainer.experiment_name=ray")
    until(lambda: reached_step(1))
    assert len(workers()) == 2
    killed.kill()
    until(lambda: not workers())
    killed.wait()

    asked = head.begin("train", "--resume", "ray")
    until(lambda: reached_step(3))
    asked.send_signal(signal.SIGTERM)
    assert asked.wait() == 143
    state = fold(events_of(run / "events.jsonl"))
    assert (state.status, state.step < 6) == ("stopped", True)
    assert state.checkpoint.endswith(f"step_{state.step:06}")

    (head.folder / "slow").unlink()
    ended = head("train", "--resume", "ray")
    assert ended.returncode == 0, ended.stderr
    assert result(head.run("local"), 6) == result(run, 6)
    for name in ("local", "ray"):
        used = [event for event in events_of(head.run(name) / "events.jsonl") if isinstance(event, Usage)]
        assert {usage.rank for usage in used} == {0, 1}, "and each tells what it uses"
        assert max(usage.memory_bytes for usage in used) > 100 << 20, "which is more than a Python without torch"


@pytest.mark.slow
def test_a_detached_run_outlives_the_head(head: Any, small: list[str], result: Any, until: Until) -> None:
    """It waits until Ray is started again there, and goes on."""
    words = [*small, "algorithm=sft", "trainer.test_freq=-1", "trainer.total_training_steps=400"]
    begun = head("train", "-d", *words, "cluster=ray", "trainer.save_freq=20", "trainer.experiment_name=lives")
    assert begun.returncode == 0, begun.stderr
    run = head.run("lives")
    until(lambda: list(run.glob("checkpoints/step_*")))
    (server,) = [process for process in of_ray(head.folder) if process.name() == "gcs_server"]
    server.kill()
    until(lambda: fold(events_of(run / "events.jsonl")).status == "finished", 120)
    assert "Restarted" in (run / "events.jsonl").read_text()
    assert head("train", *words, "trainer.save_freq=20", "trainer.experiment_name=calm").returncode == 0
    assert result(run, 400) == result(head.run("calm"), 400)


@pytest.mark.slow
@pytest.mark.skipif(not has_outside, reason="this user may not make a process namespace")
def test_a_run_of_a_machine_that_is_no_node_is_refused(head: Any, small: list[str]) -> None:
    """Before Ray looks for a node for a minute."""
    address = head_address("auto")
    words = [*small, "algorithm=sft", "cluster=ray", f"cluster.address={address}", "cluster.wait_s=2"]
    typed = [*OUTSIDE, sys.executable, "-m", "launcher", "train", *words]
    ran = subprocess.run(typed, cwd=head.folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and "this machine is not a node of it; use ray start --address" in ran.stderr, ran.stderr
