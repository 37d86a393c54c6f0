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


def test_a_run_on_ray_ends_as_plain_processes_do_however_often_it_is_stopped(
    commands: Any, small: list[str], result: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    """Two processes; the launcher is killed, and after a resume asked to stop."""
    rlrun = commands(tmp_path)
    (tmp_path / "mine").mkdir()  # a reward of one's own and its neighbour, by a path from the working directory
    (tmp_path / "mine" / "my.py").write_text("from helpers import shared as f\n")
    (tmp_path / "mine" / "helpers.py").write_text(
        "import os, time\ndef shared(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    time.sleep(0.05 if os.path.exists('slow') else 0)\n"
        "    return len(set(solution_str) & set(ground_truth)) / 10\n"
    )
    words = [
        *small, "reward=mine/my.py:f", "algorithm=grpo", "hardware.nproc_per_node=2", "trainer.total_training_steps=6",
        "trainer.save_freq=1", "cluster.usage_s=0.2",
    ]  # fmt: skip
    plain = rlrun("train", *words, "cluster=local", "trainer.experiment_name=local")
    assert plain.returncode == 0, plain.stderr
    run, temp = rlrun.run("ray"), Path(os.environ["TMPDIR"])

    def reached_step(step: int) -> bool:
        return (run / "events.jsonl").exists() and fold(events_of(run / "events.jsonl")).step >= step

    (tmp_path / "slow").touch()
    killed = rlrun.begin("train", *words, "cluster=ray", "trainer.experiment_name=ray")
    until(lambda: reached_step(1))
    others = psutil.Process(killed.pid).children(recursive=True)
    assert len(others) > 3
    killed.kill()
    until(lambda: not any(process.is_running() for process in others))
    killed.wait()

    asked = rlrun.begin("train", "--resume", "ray")
    until(lambda: reached_step(3))
    ports = _listening(psutil.Process(asked.pid))
    assert len(ports) > 4 and set(ports) == {"127.0.0.1"}, "no other machine reaches a cluster of one"
    [folder] = temp.glob(f"{NAME}-{asked.pid}-*")
    [session] = (folder / "r").glob("session_2*")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "r", session)] == [0o700] * 3
    asked.send_signal(signal.SIGTERM)
    assert asked.wait() == 143
    state = fold(events_of(run / "events.jsonl"))
    assert (state.status, state.step < 6) == ("stopped", True)
    assert state.checkpoint.endswith(f"step_{state.step:06}")

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
