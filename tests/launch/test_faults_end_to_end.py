"""Whole runs whose processes are killed, stopped and asked to end, through the real command line.

A run costs about five CPU seconds, because torch is loaded; so they are few.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Restarted, Stalled, Step, WentOn, events_of
from launcher.core.state import RunState, fold
from launcher.runs import stop_requests
from launcher.runs.folder import Folder, holder

pytestmark = pytest.mark.slow

LAST = 300
LONG = ["algorithm=sft", f"trainer.total_training_steps={LAST}", "trainer.save_freq=20", "trainer.test_freq=200",
        "trainer.micro_batch_size_per_gpu=2"]  # fmt: skip
"""Five milliseconds a step or more, and every step's gradient moves the weights."""
ENDLESS = [*LONG[:1], "trainer.total_training_steps=100000", *LONG[2:]]
FEW = 120
TWO = [f"trainer.total_training_steps={FEW}", "hardware.nproc_per_node=2"]


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    return commands(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def untouched(rlrun: Any, small: list[str]) -> Path:
    ran = rlrun("train", *small, *LONG, "trainer.experiment_name=untouched")
    assert ran.returncode == 0, ran.stderr
    return Path(rlrun.run("untouched"))


def events(run: Path, *kinds: type) -> list[Any]:
    return [event for event in events_of(run / "events.jsonl") if isinstance(event, kinds)]


def state_of(run: Path) -> RunState:
    return fold(events_of(run / "events.jsonl"))


def steps_told(run: Path) -> int:
    log = run / "events.jsonl"
    return log.read_bytes().count(b'"kind":"Step"') if log.exists() else 0


def workers(launcher: int) -> list[int]:
    """Of rank 0, 1, ...; the sieve of their logs is no worker."""
    found = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"torch.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                found[next(int(each[5:]) for each in variables if each.startswith(b"RANK="))] = int(child)
    return [found[rank] for rank in sorted(found)]


def attempts(rlrun: Any, name: str) -> list[tuple[str, int | None]]:
    node = json.loads(rlrun("show", name, "--json").stdout)
    return [(each["ended"]["cause"], each["ended"]["rank"]) for each in node["attempts"]]


# ---- killed


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(
    rlrun: Any, small: list[str], untouched: Path, until: Callable[..., None], result: Callable[..., Any]
) -> None:
    """The second kill takes the launcher too, between a step and the next checkpoint; --resume is supervised alike."""
    run = rlrun.run("killed")
    process = rlrun.begin("train", *small, *LONG, "trainer.experiment_name=killed")
    until(lambda: steps_told(run) > 50)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    until(lambda: len(events(run, Restarted)) == 1 and state_of(run).step > 100)
    for pid in (process.pid, *workers(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process = rlrun.begin("train", "--resume", "killed")
    until(lambda: state_of(run).step > 180)
    os.kill(workers(process.pid)[0], signal.SIGSEGV)
    assert process.wait(timeout=120) == 0
    assert result(run, LAST) == result(untouched, LAST)
    assert [event.step for event in events(run, Step)] == list(range(LAST + 1))
    first, second = events(run, Restarted)
    assert (first.attempt, second.attempt, state_of(run).restarts) == (2, 4, 2)
    assert 40 <= first.step <= 60 and 180 <= second.step < LAST
    shown = rlrun("show", "killed").stdout
    assert "killed by SIGSEGV" in shown and "not recorded" in shown and "restarts  2" in shown


def test_one_that_begins_with_another_runs_model_is_restarted_before_its_first_checkpoint(
    rlrun: Any, small: list[str], untouched: Path, until: Callable[..., None]
) -> None:
    """The model is named by its run's folder then, and is the same model."""
    data = [word for word in small if not word.startswith("model")]
    model = ["model=hf", f"model.path={untouched.relative_to(rlrun.folder)}", "trainer.experiment_name=begun"]
    process = rlrun.begin("train", *data, *model, *LONG, "trainer.save_freq=1000")
    run = rlrun.run("begun")
    until(lambda: steps_told(run) > 2)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    assert process.wait(120) == 0 and len(events(run, Restarted)) == 1


def test_of_two_processes_the_one_that_was_killed_is_named(
    rlrun: Any, small: list[str], until: Callable[..., None]
) -> None:
    """Rank 0 says that a connection was closed, and its log is the one that is heard."""
    run = rlrun.run("two")
    process = rlrun.begin("train", *small, *LONG, *TWO, "trainer.experiment_name=two")
    until(lambda: steps_told(run) > 30)
    os.kill(workers(process.pid)[1], signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    (again,) = events(run, Restarted)
    assert again.cause == "killed" and again.why.startswith("rank 1: killed by SIGKILL")
    assert [event.step for event in events(run, Step)] == list(range(FEW + 1))
    assert attempts(rlrun, "two") == [("killed", 1), ("finished", None)]


# ---- standing still


def test_a_process_that_stands_still_is_named(rlrun: Any, small: list[str], until: Callable[..., None]) -> None:
    run = rlrun.run("still")
    words = [*ENDLESS, *TWO[1:], "cluster.stall_grace_s=1.5", "trainer.experiment_name=still"]
    process = rlrun.begin("train", *small, *words)
    try:
        until(lambda: steps_told(run) > 50)
        pid = workers(process.pid)[1]
        os.kill(pid, signal.SIGSTOP)
        stopped_at = time.time()
        until(lambda: events(run, Stalled))
        (told,) = events(run, Stalled)
        assert told.rank == 1 and told.at - stopped_at <= 2 * (state_of(run).seconds_per_step or 0.0) + 1.5 + 2.0
        assert f"rank 1 (process {pid} on {socket.gethostname()}): was stopped, as by SIGSTOP" in told.why
        time.sleep(2.0)
        assert len(events(run, Stalled)) == 1, "said once"
        step = state_of(run).step
        os.kill(pid, signal.SIGCONT)
        until(lambda: state_of(run).step > step)
        (went_on,) = events(run, WentOn)
        assert went_on.after_s == pytest.approx(went_on.at - stopped_at, abs=1.0) and state_of(run).stalled == ""
        console = (run / "console.log").read_text()
        assert "stalled after step" in console and "continues after" in console
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


# ---- asked to end


@pytest.fixture(scope="module")
def ended(rlrun: Any, small: list[str], until: Callable[..., None]) -> dict[str, tuple[int, float, RunState]]:
    """One run, ended in each way and resumed: its exit code, the seconds that it took, and how it stood then."""

    def group(process: subprocess.Popen[str]) -> None:
        """As a machine that is taken away asks everything on it."""
        for pid in (process.pid, *workers(process.pid)):
            os.kill(pid, signal.SIGTERM)

    def second(process: subprocess.Popen[str]) -> None:
        os.kill(workers(process.pid)[1], signal.SIGTERM)

    def remote(process: subprocess.Popen[str]) -> None:
        stop_requests.ask(Folder(run), "save")

    run, found = rlrun.run("asked"), {}
    for way in (group, second, remote):
        words = ["--resume", "asked"] if found else [*small, *LONG, *TWO, "trainer.experiment_name=asked"]
        process = rlrun.begin("train", *words)
        before = steps_told(run)
        until(lambda process=process, before=before: len(workers(process.pid)) == 2 and steps_told(run) >= before + 10)
        began = time.monotonic()
        way(process)
        code = process.wait(timeout=60)
        found[way.__name__] = code, time.monotonic() - began, state_of(run)
        until(lambda: holder(Folder(run)) is None)
    return found


@pytest.mark.parametrize("way", ["group", "second", "remote"])
def test_a_run_that_is_asked_to_end_saves_within_ten_seconds(
    rlrun: Any, ended: dict[str, tuple[int, float, RunState]], way: str
) -> None:
    code, took, state = ended[way]
    assert (code, state.status) == (143, "stopped") and took <= 10.0
    assert 0 < state.step < FEW and state.checkpoint == f"checkpoints/step_{state.step:06d}"
    whose = " to rank" if way == "second" else "; "
    assert state.why.startswith(f"SIGTERM{whose}")
    assert state.why.endswith(f"; {state.checkpoint} is the newest checkpoint")
