"""Processes of this machine: which one failed first, and where each of them stands."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.clusters.local import STACK_FILE, LocalJob
from launcher.spec.cluster import Stack
from launcher.spec.engine import Plan, Process
from tests.conftest import wait_until

HEAD = "import faulthandler, os, signal, sys, time\n"
ANSWERS = HEAD + f"faulthandler.register(signal.SIGUSR1, file=int(os.environ[{STACK_FILE!r}]), all_threads=True)\n"
READY = "print('ready', flush=True)\n"
SLEEPS = ANSWERS + READY + "def here():\n    time.sleep(60)\nhere()\n"
LOCKED = ANSWERS + READY + "import ctypes\nctypes.PyDLL(None).sleep(60)\n"  # with the lock of the interpreter
DEAF = HEAD + READY + "time.sleep(60)\n"  # does not catch the signal, which would end it


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., LocalJob]]:
    """Processes that run these programs, once each has said `ready`."""
    jobs: list[LocalJob] = []
    lock = os.open(tmp_path / ".lock", os.O_CREAT | os.O_RDWR)

    def begin(*programs: str) -> LocalJob:
        plan = Plan(tuple(Process(rank, (sys.executable, "-c", text)) for rank, text in enumerate(programs)))
        jobs.append(LocalJob(plan, tmp_path, lock, os.environ))
        logs = [tmp_path / f"rank-{rank}.log" for rank in range(len(programs))]
        wait_until(lambda: all("ready" in log.read_text() for log in logs))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
        wait(job)
    os.close(lock)


def wait(job: LocalJob) -> int:
    wait_until(lambda: job.exit_code() is not None)
    code = job.exit_code()
    assert code is not None
    return code


LIMIT_S = 30.0


def stacks(job: LocalJob, wait_s: float = LIMIT_S) -> tuple[list[Stack], float]:
    began = time.monotonic()
    return job.stacks(wait_s), time.monotonic() - began


def test_every_process_says_where_it_stands(begun: Callable[..., LocalJob], tmp_path: Path) -> None:
    """But for one that does not catch the signal, which would end it."""
    job = begun(SLEEPS, SLEEPS, DEAF)
    for _ in range(2):  # what was said before is gone
        (first, second, deaf), took = stacks(job)
        assert took < LIMIT_S, "it waits no longer than they take"
        assert (first.rank, second.rank, first.state) == (0, 1, "S") and first.pid != second.pid
        for stack in (first, second):
            assert stack.text.count(" in here") == 1 and stack.text.rstrip().endswith("in <module>")
        assert (deaf.state, deaf.text) == ("S", "")
    assert (tmp_path / "rank-1.stack").stat().st_mode & 0o777 == 0o600
    assert job.exit_code() is None and job.lost_resources() == "", "and they go on"


def test_it_answers_out_of_code_that_never_comes_back(begun: Callable[..., LocalJob]) -> None:
    ((stack,), _) = stacks(begun(LOCKED))
    assert "in <module>" in stack.text


def test_a_process_that_was_stopped_or_has_ended_is_known_by_its_state(begun: Callable[..., LocalJob]) -> None:
    job = begun(SLEEPS, SLEEPS)
    pid = job.stacks(LIMIT_S)[1].pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    ((first, second), took) = stacks(job)
    assert "in here" in first.text and (second.state, second.text) == ("T", "") and took < LIMIT_S
    os.kill(pid, signal.SIGCONT)
    assert all("in here" in stack.text for stack in job.stacks(LIMIT_S)), "it was not asked meanwhile"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: job.stacks(LIMIT_S)[1].state == "X")
    assert (job.stacks(LIMIT_S)[1].rank, job.stacks(LIMIT_S)[1].text) == (1, "")


def test_no_answer_is_waited_for_longer_than_asked(begun: Callable[..., LocalJob]) -> None:
    blocked = ANSWERS + "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n" + READY + "time.sleep(60)\n"
    ((stack,), took) = stacks(begun(blocked), 0.5)
    assert stack.text == "" and 0.5 <= took < 5.0


# ---- who failed

FAILS = HEAD + READY + "time.sleep(0.2)\nsys.exit(5)\n"
KILLED = HEAD + READY + "time.sleep(0.2)\nos.kill(os.getpid(), signal.SIGKILL)\n"
FOLLOWS = HEAD + READY + "time.sleep(0.1)\nsys.exit(1)\n"  # a neighbour may be seen first


@pytest.mark.parametrize(
    ("programs", "rank", "code"),
    [
        ((HEAD + READY, FAILS), 1, 5),
        ((FOLLOWS, KILLED), 1, -9),
        ((KILLED, FOLLOWS), 0, -9),
        ((FOLLOWS, FAILS.replace("0.2", "5")), 0, 1),
        ((HEAD + READY, HEAD + READY), None, 0),
    ],
    ids=["the second", "a kill after what follows", "a kill", "the sooner", "none"],
)
def test_who_failed_first(begun: Callable[..., LocalJob], programs: list[str], rank: int | None, code: int) -> None:
    job = begun(*programs)
    assert (wait(job), job.failed_rank()) == (code, rank)
