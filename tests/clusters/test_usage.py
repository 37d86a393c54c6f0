"""What processes use, against children that use as much as is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from launcher.clusters.local import Local, LocalJob, usage
from launcher.clusters.local.usage import Meter
from launcher.core import machine
from launcher.core.events import Usage
from launcher.spec.engine import Plan, Process

MB = 1 << 20
BURN = "while True: pass"
HOLD = f"held = bytearray(b'x' * {200 * MB}); print(flush=True); input()"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"

Begin = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts code as a process, which is gone with all that it started once the test is over."""
    made: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes))  # type: ignore[call-overload]
        return made[-1]

    yield start
    for process in made:
        os.killpg(process.pid, 9)
        process.communicate()


def looked(meter: Meter, seconds: float = 20.0) -> list[Usage]:
    give_up = time.monotonic() + seconds
    while not (found := meter.take()):
        assert time.monotonic() < give_up, "nothing was looked at"
        time.sleep(0.01)
    return found


def spent(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2]) + sum(sum(child.cpu_times()[:2]) for child in process.children())


def test_each_process_is_told_with_its_children_and_one_that_has_ended_is_not(begin: Begin, tmp_path: Path) -> None:
    holds, idles, ends, burns = begin(HOLD), begin("input()"), begin("pass"), psutil.Process(begin(CHILD).pid)
    assert holds.stdout and holds.stdout.readline() == b"\n"
    os.waitid(os.P_PID, ends.pid, os.WEXITED | os.WNOWAIT)  # not waited for, as until the follower looks
    pids = {0: holds.pid, 1: idles.pid, 2: ends.pid, 3: burns.pid}
    before = spent(burns)
    meter = Meter(pids, dict.fromkeys(pids, ""), tmp_path, 1.0)
    first, second, third = looked(meter)
    most = 100 * (spent(burns) - before)  # of at least one second
    meter.close()
    least = spent(burns)
    assert least <= meter._process_usage()[3][0] <= spent(burns), "its child burns"
    assert (first.rank, second.rank, third.rank) == (0, 1, 3)
    assert 0 < third.cpu_percent <= most + 2, "and it did burn"
    assert third.machine_cpu_percent > 5 and second.cpu_percent < 50
    assert 200 * MB <= first.memory_bytes <= 260 * MB and 0 < second.memory_bytes <= 60 * MB
    assert 0 < first.machine_memory_bytes < first.machine_memory_total_bytes == machine.memory_bytes()
    assert first.disk_free_bytes == pytest.approx(machine.free_disk_bytes(tmp_path), rel=0.05)
    assert (first.gpu_percent, first.gpu_memory_bytes, first.gpu_celsius) == (None, None, None)


def test_cpu_is_what_was_used_between_two_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = count(100.0, 4.0), count(10.0, 6.0)
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(Meter, "_process_usage", lambda _: {0: (next(spent), MB)})
    with closing(Meter({0: 0}, {0: ""}, tmp_path, 0.01)) as meter:
        assert [looked(meter)[0].cpu_percent for _ in range(2)] == [150.0] * 2


def test_a_disk_that_does_not_answer_is_unknown(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> int:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(machine, "free_disk_bytes", gone)
    meter = Meter({0: begin("input()").pid}, {0: ""}, tmp_path, 0.05)
    assert looked(meter)[0].disk_free_bytes is None
    meter.close()


def test_a_job_tells_what_its_processes_use_and_leaves_no_thread(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)"
    plan = Plan(tuple(Process(rank, (sys.executable, "-c", waits)) for rank in range(2)))
    job = LocalJob(plan, tmp_path, os.open(tmp_path / "lock", os.O_CREAT), os.environ, usage_s=0.2)
    found: list[Usage] = []
    while job.exit_code() is None:
        found += job.usage()
        if {usage.rank for usage in found} == {0, 1}:
            go.touch()
        time.sleep(0.05)
    for thread in threading.enumerate():
        if thread.name == "usage":
            thread.join(600)
            assert not thread.is_alive()


def test_many_processes_are_looked_at_less_often() -> None:
    """Eight processes make 46 thousand events a day; so do more."""
    plans = [Plan(tuple(Process(rank, ("true",)) for rank in range(processes))) for processes in (1, 8, 64)]
    assert [Local().usage_pause_s(plan) for plan in plans] == [15, 15, 120]


# ---- a container's memory


def test_a_container_with_a_limit_tells_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 GB of the machine say nothing in a container of 1 GB; files that are cached can be given back."""
    texts = {"max": f"{1 << 30}\n", "current": f"{600 * MB}\n", "stat": f"anon 5\ninactive_file {100 * MB}\n"}
    for name, text in texts.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    assert (machine.used_memory_bytes(), machine.memory_bytes()) == (500 * MB, 1 << 30)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.used_memory_bytes() == pytest.approx(
        psutil.virtual_memory().total - psutil.virtual_memory().available, rel=0.2
    )
