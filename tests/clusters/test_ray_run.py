"""Runs on Ray: the same numbers as plain processes, and every end of one leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.clusters.ray.job import NAME
from launcher.core.events import Usage, Waiting, events_of
from launcher.core.state import fold

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a process of Ray nor its folder, whatever a test did."""
    short = Path(f"/tmp/rlr-{os.getpid()}")
    short.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(short))
    yield
    give_up = time.monotonic() + 30
    mark = str(short / f"{NAME}-")
    while left := [one for one in psutil.process_iter(["cmdline"]) if mark in " ".join(one.info["cmdline"] or [])]:
        assert time.monotonic() < give_up, left
        time.sleep(0.2)
    assert not list(short.glob(f"{NAME}-*"))
    shutil.rmtree(short)


def _listening(launcher: psutil.Process) -> list[str]:
    """The address of every TCP port that Ray has opened, below the launcher; torch's own store is not Ray's."""
    processes = [each for each in launcher.children(recursive=True) if "engines.torch" not in " ".join(each.cmdline())]
    found = [each for process in processes for each in process.net_connections("inet") if each.status == "LISTEN"]
    return [each.laddr.ip.removeprefix("::ffff:") for each in found]


@pytest.fixture
def words(small: list[str], tmp_path: Path) -> list[str]:
    """Of a run of two processes, with a reward that takes time while there is a file `slow`."""
    (tmp_path / "mine").mkdir()  # a reward of one's own and its neighbour, by a path from the working directory
    (tmp_path / "mine" / "my.py").write_text("from helpers import shared as f\n")
    (tmp_path / "mine" / "helpers.py").write_text(
        "import os, time\ndef shared(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    time.sleep(0.05 if os.path.exists('slow') else 0)\n"
        "    return len(set(solution_str) & set(ground_truth)) / 10\n"
    )
    return [
        *small, "reward=mine/my.py:f", "algorithm=grpo", "hardware.nproc_per_node=2", "trainer.total_training_steps=6",
        "trainer.save_freq=1", "cluster.usage_s=0.2",
    ]  # fmt: skip


def reached_step(run: Path, step: int) -> bool:
    return (run / "events.jsonl").exists() and fold(events_of(run / "events.jsonl")).step >= step


def stop_it(process: Any, run: Path, until: Callable[..., None]) -> None:
    """Once it has trained three steps."""
    until(lambda: reached_step(run, 3))
    ports = _listening(psutil.Process(process.pid))
    assert len(ports) > 4 and set(ports) == {"127.0.0.1"}, "no other machine reaches a cluster of one"
    [folder] = Path(os.environ["TMPDIR"]).glob(f"{NAME}-{process.pid}-*")
    [session] = (folder / "r").glob("session_2*")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "r", session)] == [0o700] * 3
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    state = fold(events_of(run / "events.jsonl"))
    assert (state.status, state.step < 6) == ("stopped", True)
    assert state.checkpoint.endswith(f"step_{state.step:06}")


def test_a_run_on_ray_learns_as_plain_processes_do_until_it_is_stopped(
    commands: Any, words: list[str], told: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    rlrun = commands(tmp_path)
    plain = rlrun("train", *words, "trainer.experiment_name=local")
    assert plain.returncode == 0, plain.stderr
    (tmp_path / "slow").touch()
    stop_it(rlrun.begin("train", *words, "cluster=ray", "trainer.experiment_name=ray"), rlrun.run("ray"), until)
    steps = {
        name: [line for line in told(rlrun.run(name)) if '"kind": "Step"' in line][:4] for name in ("local", "ray")
    }
    assert len(steps["ray"]) == 4 and steps["ray"] == steps["local"]


@pytest.mark.long
def test_a_run_on_ray_ends_as_plain_processes_do_however_often_it_is_stopped(
    commands: Any, words: list[str], result: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    """Two processes; the launcher is killed, and after a resume asked to stop."""
    rlrun = commands(tmp_path)
    plain = rlrun("train", *words, "cluster=local", "trainer.experiment_name=local")
    assert plain.returncode == 0, plain.stderr
    run = rlrun.run("ray")
    (tmp_path / "slow").touch()
    killed = rlrun.begin("train", *words, "cluster=ray", "trainer.experiment_name=ray")
    until(lambda: reached_step(run, 1))
    others = psutil.Process(killed.pid).children(recursive=True)
    assert len(others) > 3
    killed.kill()
    until(lambda: not any(process.is_running() for process in others))
    killed.wait()

    stop_it(rlrun.begin("train", "--resume", "ray"), run, until)
    (tmp_path / "slow").unlink()
    ended = rlrun("train", "--resume", "ray")
    assert ended.returncode == 0, ended.stderr
    assert result(rlrun.run("local"), 6) == result(run, 6)
    for name in ("local", "ray"):
        used = [event for event in events_of(rlrun.run(name) / "events.jsonl") if isinstance(event, Usage)]
        assert {usage.rank for usage in used} == {0, 1}, "and each tells what it uses"
        assert max(usage.memory_bytes for usage in used) > 100 << 20, "which is more than a Python without torch"


def test_waiting_is_an_event_until_processes_speak() -> None:
    state = fold([Waiting(text="1 node with 1 GPU asked for")])
    assert state.status == "waiting"
    assert state.waits_for == "1 node with 1 GPU asked for"
