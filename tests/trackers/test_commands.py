"""`rlrun track`, `trainer.logger`, what a plan says of trackers, and the processes that a run starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve, try_resolve
from launcher.core.events import Ended, Step
from launcher.core.state import RunState
from launcher.launch import track
from launcher.launch.track import TrackerProcesses, tracked
from launcher.preflight.checks import trackers
from launcher.preflight.checks.context import Context
from launcher.runs.folder import Folder
from launcher.spec.trackers import TRACKERS, missing_package

HOLDS = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
"""Is the run's writer until its standard input ends."""
WORDS = ["algorithm=sft", "model=tiny", "data=reverse"]


def rlrun(*words: str):
    return CliRunner().invoke(app, [*words], prog_name="rlrun")


def step(number: int) -> Step:
    return Step(at=float(number), step=number, metrics={"a": number / 7})


# ---- the command


def test_a_run_is_sent_once(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder.write([step(0), step(1), Ended(how="finished")])
    first, second = rlrun("track", "one", "--to", "file"), rlrun("track", "p/one", "--to", "file")
    assert (first.exit_code, first.stdout) == (0, "file: 2 steps sent to runs/p/one/metrics.jsonl\n")
    assert (second.exit_code, second.stdout) == (0, "file: nothing new for runs/p/one/metrics.jsonl\n")
    node = json.loads(rlrun("track", "one", "--to", "file", "--json").stdout)
    assert (node["run"], node["tracker"], node["steps"], node["failure"]) == ("p/one", "file", 0, "")


def test_a_missing_library_is_named_with_what_installs_it(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    missing = [name for name in TRACKERS if missing_package(name)]
    for name in missing:
        ran = rlrun("track", "one", "--to", name)
        assert ran.exit_code == 2
        assert f"is not installed; run pip install {name}, or pip install 'rlrun[trackers]'" in ran.stderr


def test_what_has_not_arrived_is_an_exit_code(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path / "blocked"))
    folder.write([step(0)])
    ran = rlrun("track", "one", "--to", "file")
    assert ran.exit_code == 1 and "run the same command again" in ran.stdout and ran.stderr.count("blocked") == 1
    monkeypatch.delenv("VERL_FILE_LOGGER_ROOT")
    assert rlrun("track", "one", "--to", "file").stdout == "file: 1 step sent to runs/p/one/metrics.jsonl\n"


def test_a_running_run_is_followed_to_its_end(folder, tmp_path, until):
    folder.write([step(0)])
    argv = [sys.executable, "-c", HOLDS, str(folder.path / ".lock")]
    writer = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdin and writer.stdout and writer.stdout.readline()
    argv = [sys.executable, "-m", "launcher", "track", str(folder.path), "--to", "file", "--follow"]
    follower = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    sent = folder.path / "metrics.jsonl"
    until(lambda: sent.exists() and sent.read_text().count("\n") == 1)
    folder.write([step(1)])
    until(lambda: sent.read_text().count("\n") == 2)
    folder.write([step(2), Ended(how="finished")])
    writer.communicate()
    out, _ = follower.communicate(timeout=60)
    assert out == f"file: 3 steps sent to {sent}\n" and follower.returncode == 0


# ---- settings and the plan


def test_verls_spelling_is_taken_and_an_unknown_tracker_named():
    for word in ('trainer.logger=["console","wandb"]', "trainer.logger=[console,wandb]"):
        assert resolve([*WORDS, word]).trainer.logger == ("console", "wandb")
    (problem,) = try_resolve([*WORDS, "trainer.logger=[console,tensorbord]"]).problems
    assert str(problem) == "trainer.logger: got 'tensorbord', which is not a tracker; did you mean tensorboard?"


def results(*logger: str) -> list[str]:
    run = resolve(WORDS)
    context = Context(replace(run, trainer=replace(run.trainer, logger=("console", *logger))), here=True)
    return [f"{result.level} {result.line}" for result in trackers.check(context)]


def test_a_plan_warns_where_there_is_no_key_of_wandb(monkeypatch, tmp_path):
    assert results() == [] and results("file") == ["OK trainer.logger: file"]
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(variable, raising=False)

    def warned() -> bool:
        return any("API_KEY is not set" in line and line.startswith("WARN") for line in results("wandb"))

    assert warned()
    file = tmp_path / ".netrc"
    file.write_text("machine api.wandb.ai login user password 0123456789\n")
    file.chmod(0o600)
    assert not warned()
    file.write_text("damaged")
    assert warned()
    for variable, value in (("WANDB_MODE", "offline"), ("WANDB_API_KEY", "0123456789")):
        monkeypatch.setenv(variable, value)
        assert not warned()
        monkeypatch.delenv(variable)


# ---- the processes of a run


@pytest.fixture
def processes(folder):
    made = TrackerProcesses(["file"], Folder(folder.path))
    yield made
    made.close()


def looked(processes: TrackerProcesses) -> None:
    processes._looked_at = -1e9
    processes.write(RunState(), [], [])


def lines(folder) -> int:
    file = folder.path / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_a_killed_tracker_is_started_again_and_what_is_left_is_sent_at_the_end(folder, processes, until):
    folder.write([step(0)])
    looked(processes)
    until(lambda: lines(folder) == 1)
    first = processes.processes[0].process
    assert first
    first.kill()
    first.wait()
    folder.write([step(1)])
    looked(processes)
    until(lambda: lines(folder) == 2)
    folder.write([step(2)])
    processes.close()
    assert processes.late == [] and lines(folder) == 3
    assert " steps sent to " in (folder.path / "logs" / "tracker-file.log").read_text()


def test_a_hanging_tracker_keeps_the_end_waiting_for_a_bounded_time(folder, monkeypatch, until):
    monkeypatch.setattr(track, "FINISH_S", 0.5)
    run = resolve([*WORDS, "trainer.logger=[console,file]"])
    messages = list[str]()

    class Lines:
        def write(self, state, events, lines) -> None:
            messages.extend(lines)

        def close(self) -> None:
            """Nothing is open."""

    folder.write([step(0)])
    begin = time.monotonic()
    with tracked(run, Folder(folder.path), [Lines()]) as sinks:
        sinks[-1].write(RunState(), [], [])
        until(lambda: lines(folder) == 1)
        pid = sinks[-1].processes[0].process.pid
        os.kill(pid, signal.SIGSTOP)
        folder.write([step(1)])
        begin = time.monotonic()
    assert time.monotonic() - begin < 30
    fix = f"rlrun track {folder.path} --to file sends the rest"
    assert messages == [f"file: not everything has arrived, see logs/tracker-file.log; {fix}"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert rlrun("track", str(folder.path), "--to", "file").exit_code == 0 and lines(folder) == 2


@pytest.mark.slow
def test_a_whole_run_with_trackers_ends_as_one_without(commands, small_sft, tmp_path):
    rlrun = commands(tmp_path)
    words = ["train", "algorithm=sft", *small_sft, "trainer.total_training_steps=3"]
    ran = rlrun.here(*words, "trainer.logger=[console,file]", "trainer.experiment_name=with")
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line)["step"] for line in (rlrun.run("with") / "metrics.jsonl").read_text().splitlines()]
    assert found == [0, 1, 2, 3]
