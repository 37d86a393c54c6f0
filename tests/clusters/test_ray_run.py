"""Runs on Ray: the same numbers as plain processes, and every end of one leaves nothing behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
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

ON_RAY = ["cluster=ray", "algorithm=grpo"]
LONG = [
    "trainer.total_training_steps=100000",
    "trainer.save_freq=1000",
    "trainer.test_freq=-1",
    "trainer.max_restarts=0",
]


@pytest.fixture
def rlrun(tmp_path: Path, commands: Any) -> Any:
    return commands(tmp_path)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a process of Ray nor its folder, whatever a test did."""
    short = Path(f"/tmp/rlr-{os.getpid()}")
    short.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(short))
    yield
    give_up = time.monotonic() + 30
    while (left := _of(str(short / f"{NAME}-"))) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert not left
    assert not list(short.glob(f"{NAME}-*"))


def _of(mark: str) -> list[psutil.Process]:
    """Processes whose command line holds `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_two_processes_on_ray_give_what_two_plain_ones_give(
    rlrun: Any, small: list[str], result: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()  # a reward of one's own and its neighbour, by a path from the working directory
    (tmp_path / "mine" / "my.py").write_text("from helpers import shared as f\n")
    (tmp_path / "mine" / "helpers.py").write_text(
        "def shared(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return len(set(solution_str) & set(ground_truth)) / 10\n"
    )
    words = [
        *small,
        "reward=mine/my.py:f",
        "algorithm=grpo",
        "hardware.nproc_per_node=2",
        "trainer.total_training_steps=6",
        "trainer.save_freq=3",
        "cluster.usage_s=0.2",
    ]
    for cluster in ("local", "ray"):
        ran = rlrun("train", *words, f"cluster={cluster}", f"trainer.experiment_name={cluster}")
        assert ran.returncode == 0, ran.stderr
        used = [event for event in events_of(rlrun.run(cluster) / "events.jsonl") if isinstance(event, Usage)]
        assert {usage.rank for usage in used} == {0, 1}, "and each tells what it uses"
        assert max(usage.memory_bytes for usage in used) > 100 << 20, "which is more than a Python without torch"
    assert result(rlrun.run("local"), 6) == result(rlrun.run("ray"), 6)


@pytest.fixture
def running(rlrun: Any, small: list[str], until: Callable[..., None]) -> Iterator[subprocess.Popen[str]]:
    """A run in the middle of its training."""
    words = ["train", *small, *ON_RAY, *LONG, "trainer.experiment_name=long"]
    process = rlrun.begin(*words)
    events = rlrun.run("long") / "events.jsonl"
    until(lambda: events.exists() and fold(events_of(events)).step >= 5)
    yield process
    process.kill()


def _end(rlrun: Any) -> Any:
    return fold(events_of(rlrun.run("long") / "events.jsonl"))


def _listening(launcher: psutil.Process) -> list[str]:
    """The address of every TCP port that is open in the launcher and all that it started."""
    processes = (launcher, *launcher.children(recursive=True))
    found = [each for process in processes for each in process.net_connections("inet") if each.status == "LISTEN"]
    return [each.laddr.ip.removeprefix("::ffff:") for each in found]


def test_sigterm_saves_and_ends_with_143(running: subprocess.Popen[str], rlrun: Any) -> None:
    ports = _listening(psutil.Process(running.pid))
    assert len(ports) > 4 and set(ports) == {"127.0.0.1"}, "no other machine reaches a cluster of one"
    [folder] = Path(os.environ["TMPDIR"]).glob(f"{NAME}-{running.pid}-*")
    [session] = (folder / "r").glob("session_2*")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "r", session)] == [0o700] * 3
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 143
    assert time.monotonic() - began < 15
    state = _end(rlrun)
    assert state.status == "stopped"
    assert state.checkpoint.endswith(f"step_{state.step:06}")


DEATHS = [
    # what is killed, and what is said of it
    ("clusters.ray.driver", "the Ray driver process ended"),
    ("raylet/raylet", "is gone"),
    ("ray::Rank", "was killed"),
]


@pytest.mark.parametrize(("whose", "message"), DEATHS, ids=[row[0] for row in DEATHS])
def test_a_part_of_ray_that_dies_is_named(running: subprocess.Popen[str], rlrun: Any, whose: str, message: str) -> None:
    launcher = psutil.Process(running.pid)
    [victim] = [process for process in launcher.children(recursive=True) if whose in " ".join(process.cmdline())][:1]
    victim.kill()
    assert running.wait(60) == 1
    assert message in _end(rlrun).why


def test_a_launcher_that_is_killed_takes_all_with_it(
    running: subprocess.Popen[str], until: Callable[..., None]
) -> None:
    others = psutil.Process(running.pid).children(recursive=True)
    assert len(others) > 3
    running.kill()
    until(lambda: not any(process.is_running() for process in others), 30)
    for left in Path(os.environ["TMPDIR"]).glob(f"{NAME}-*"):  # the next run would remove it
        assert left.name.startswith(f"{NAME}-{running.pid}-")
        subprocess.run(["rm", "-r", left], check=True)


def test_waiting_is_an_event_until_processes_speak() -> None:
    state = fold([Waiting(text="1 node with 1 GPU asked for")])
    assert state.status == "waiting"
    assert state.waits_for == "1 node with 1 GPU asked for"
