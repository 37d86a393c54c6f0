"""Whole runs through the real command line: finished, refused, interrupted in every way, and resumed to the same end.

A run costs about five CPU seconds, because torch is loaded; so they are shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import stat
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from launcher.core.checkpoints import faults, newest_verified
from launcher.core.events import Alert, Ended, Restarted, Saved, Stalled, Step, WentOn
from launcher.launch import start
from launcher.runs.folder import Folder, holder, read_attempts
from tests.conftest import weights
from tests.launch.conftest import check_printed, events, state_of, steps_told

pytestmark = pytest.mark.slow

STEPS = 6  # of `trained`
LAST = 200
LONG = ["algorithm=sft", f"trainer.total_training_steps={LAST}", "trainer.save_freq=20", "trainer.test_freq=50",
        "trainer.micro_batch_size_per_gpu=2"]  # fmt: skip
"""Five milliseconds a step or more, and every step's gradient moves the weights."""


def copy(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.with_name(name)))


def steps_of(run: Path) -> list[int]:
    return [event.step for event in events(run, Step)]


def console(run: Path) -> list[str]:
    return (run / "console.log").read_text().splitlines()


# ---- a run that finishes


def test_a_finished_run_leaves_a_whole_folder_for_its_owner_only(trained: tuple[Any, Path]) -> None:
    _, run = trained
    assert {path.name for path in run.iterdir()} == {
        ".lock", "spec.yaml", "prepared.json", "words.txt", "lock.json", "events.jsonl", "console.log", "checkpoints",
        "logs",
    }  # fmt: skip
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [f"step_{n:06d}" for n in (2, 4, 6)]
    assert not [fault for folder in (run / "checkpoints").iterdir() for fault in faults(folder)]
    assert (run / "logs" / "attempt_1" / "rank-0.log").stat().st_size > 0
    for path in (run, *run.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    words = (run / "words.txt").read_text()
    assert words.startswith("rlrun train algorithm=sft model=tiny ") and words.endswith("experiment_name=done\n")
    assert any(line.startswith("torch==") for line in json.loads((run / "lock.json").read_text())["installed"])


def test_its_events_and_its_console_tell_the_whole_story(trained: tuple[Any, Path]) -> None:
    ran, run = trained
    state = state_of(run)
    assert (state.run, state.status, state.step, state.steps) == ("rlrun/done", "finished", STEPS, STEPS)
    assert (state.checkpoint, state.alerts, state.why) == (f"checkpoints/step_{STEPS:06d}", 0, "")
    assert steps_of(run) == list(range(STEPS + 1)) and [event.step for event in events(run, Saved)] == [2, 4, 6]
    assert holder(Folder(run)) is None
    # what people grep for in verl's logs
    text = (run / "console.log").read_text()
    assert text.count("\nstep:3 - training/global_step:3 - training/epoch:0 - ") == 1
    assert len(re.findall("train/loss:[0-9.]+", text)) == STEPS
    assert "Training Progress: 100%|██████████| 6/6 [" in text
    assert len(re.findall("val-core/reverse/reward/mean@1:[0-9.]+", text)) == 3  # before, at 3, at 6
    check_printed(ran.stdout.splitlines(), run)
    assert ran.stderr.endswith("next: rlrun chat runs/rlrun/done; rlrun report runs/rlrun/done\n")
    interval = r"[\d.]+ \[[\d.]+–[\d.]+\]"
    patterns = (
        rf"held out: reverse {interval} at step 6; {interval} at step 0; .*best.*",
        r"learnt from: [\d,]+ tokens with a loss, 100% of the answers with a loss on their end",
        r"weights moved: embedding [\d.]+%, attention [\d.]+%, mlp .*, head .*%",
        r"not learned: .* 6 updates are too few.*; use trainer\.total_training_steps=100",
        "finished",
    )
    for line, pattern in zip(console(run)[-5:], patterns, strict=True):
        assert re.fullmatch(pattern, line)


def test_a_ruined_run_is_named_with_a_command_that_works(home: Any, small: list[str]) -> None:
    ruined = ["optim.lr=5", "trainer.total_training_steps=8", "trainer.experiment_name=ruined"]
    ran = home.here("train", "algorithm=sft", *small, *ruined)
    line = r"harmed: .*: the loss rose .*; use (optim\.lr=\S+)\nfinished; next: rlrun (rerun runs/rlrun/ruined \1)"
    match = re.fullmatch(line, "\n".join(ran.stdout.splitlines()[-2:]))
    assert ran.returncode == 0 and match, ran.stdout
    assert events(home.run("ruined"), Alert)[0].text.startswith("the loss rose ")
    assert state_of(home.run("ruined")).doubtful
    again = home.here(*match[2].split(), "--dry-run")
    assert (again.returncode, again.stdout) == (0, "nothing differs\n"), again


def test_the_same_name_again_is_refused(trained: tuple[Any, Path], home: Any, small: list[str]) -> None:
    _, run = trained
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    ran = home.here("train", "algorithm=grpo", *small, "trainer.experiment_name=done")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "✗ trainer.experiment_name: runs/rlrun/done already has results;"
        " use done-2, or rlrun train --resume runs/rlrun/done\n"
    )
    assert {path: path.read_bytes() for path in before} == before


# ---- a run that is interrupted in every way, one after the other


def workers(launcher: int) -> list[int]:
    """Of rank 0, 1, ...; what redacts their logs is no worker."""
    found = {}
    for child in psutil.Process(launcher).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "launcher.engines.torch.worker" in child.cmdline():
                found[int(child.environ()["RANK"])] = child.pid
    return [found[rank] for rank in sorted(found)]


def test_a_run_that_lost_its_terminal_is_stopped_and_saved(home: Any, small: list[str]) -> None:
    """The system sends SIGHUP, and the picture can no longer be drawn."""
    run, (terminal, inside) = home.run("survivor"), pty.openpty()

    def become_its_own() -> None:
        os.setsid()
        fcntl.ioctl(inside, termios.TIOCSCTTY, 0)

    words, streams = [*small, *LONG, "trainer.experiment_name=survivor"], ("stdin", "stdout", "stderr")
    process = home.begin("train", *words, preexec_fn=become_its_own, **dict.fromkeys(streams, inside))
    os.close(inside)
    drawn = b""
    while steps_told(run) < 6:
        drawn += os.read(terminal, 65536)
    os.close(terminal)
    assert b"rlrun/survivor" in drawn and process.wait(timeout=120) == 128 + signal.SIGHUP
    stopped = state_of(run)
    assert 0 < stopped.step < LAST and stopped.checkpoint == f"checkpoints/step_{stopped.step:06d}"
    (ended,) = events(run, Ended)
    assert ended.how == "stopped" and ended.why == f"SIGHUP; {stopped.checkpoint} is the newest checkpoint"


def test_a_second_signal_ends_at_once(home: Any, small: list[str], until: Callable[..., None]) -> None:
    process = home.begin("train", *small, *LONG, "trainer.experiment_name=twice")
    run = home.run("twice")
    until(lambda: (run / "events.jsonl").exists() and state_of(run).phase == "loading")
    (child,) = workers(process.pid)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None, "the first signal waits until it can save"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=600) == 143
    assert not list(run.glob("checkpoints/step_*")), "nothing was saved on the way out"
    assert not Path(f"/proc/{child}").exists()
    assert state_of(run).why == "SIGTERM, ended at once; nothing is saved yet"


# ---- two processes


def test_two_processes_are_stopped_killed_and_asked_to_end(
    trained: tuple[Any, Path], home: Any, small: list[str], until: Callable[..., None]
) -> None:
    """One run of two processes, which begins with another run's model: whom each fault is laid to."""
    run = home.run("two")
    data = [word for word in small if not word.startswith("model")]
    words = [*data, "model=hf", "model.path=runs/rlrun/done", *LONG, "hardware.nproc_per_node=2",
             "trainer.save_freq=1000", "trainer.experiment_name=two"]  # fmt: skip
    process = home.begin("train", *words, "cluster.stall_grace_s=1.5")
    until(lambda: steps_told(run) > 20)
    stopped = workers(process.pid)[1]
    why = f"rank 1 (process {stopped} on {socket.gethostname()}): was stopped, as by SIGSTOP"

    def stops() -> list[Stalled]:  # a busy machine stalls the run, too
        return [event for event in events(run, Stalled) if why in event.why]

    os.kill(stopped, signal.SIGSTOP)
    until(stops)
    os.kill(stopped, signal.SIGCONT)
    until(lambda: len(events(run, WentOn)) == len(events(run, Stalled)))
    (stalled,) = stops()
    assert stalled.rank == 1

    os.kill(stopped, signal.SIGKILL)  # before the first checkpoint: it needs the model that it began with
    until(lambda: events(run, Restarted) and len(workers(process.pid)) == 2 and state_of(run).step > 5)
    again = events(run, Restarted)[0]  # rank 0 says that a connection was closed; a busy machine may take its port
    assert again.cause == "killed" and again.why.startswith("rank 1: killed by SIGKILL")

    os.kill(workers(process.pid)[1], signal.SIGTERM)
    assert process.wait(timeout=600) == 143
    state = state_of(run)
    assert state.status == "stopped" and state.checkpoint == f"checkpoints/step_{state.step:06d}"
    assert re.fullmatch(rf"SIGTERM to rank [01]; {state.checkpoint} is the newest checkpoint", state.why)
    causes = [attempt.cause for attempt in read_attempts(Folder(run))]
    assert (causes[0], causes[-1]) == ("killed", "stopped")


# ---- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_where_a_checkpoint_is_damaged_the_run_goes_on_from_the_one_before_and_for_longer(
    trained: tuple[Any, Path], home: Any
) -> None:
    _, run = trained
    damaged = copy(run, "damaged")
    flip(damaged / "checkpoints" / f"step_{STEPS:06d}" / "policy" / "model.safetensors")
    ran = home.here("train", "--resume", "damaged", "trainer.total_training_steps=8")
    assert ran.returncode == 0, ran.stderr
    line = (
        "checkpoints/step_000006/policy/model.safetensors: its bytes changed since it was written (sha256 differs);"
        " resumed from step_000004"
    )
    assert [event.text for event in events(damaged, Alert)] == [line]
    assert f"alert at step 4: {line}" in ran.stdout.splitlines()
    state, expected, after = state_of(damaged), losses(run), losses(damaged)
    assert (state.status, state.step, state.steps) == ("finished", 8, 8)
    assert {step: after[step] for step in expected} == expected and after.keys() - expected.keys() == {7, 8}
    assert weights(damaged, STEPS) == weights(run, STEPS)
    assert newest_verified(damaged / "checkpoints") == (damaged / "checkpoints" / "step_000008", [])
    assert (damaged / "checkpoints" / "damaged-step_000006").is_dir(), "what was found damaged is kept to be looked at"
    assert yaml.safe_load((damaged / "spec.yaml").read_text())["trainer"]["total_training_steps"] == 8
    assert start.to_resume(Folder(damaged), []).is_done


def losses(run: Path) -> dict[int, float]:
    return {event.step: event.metrics["train/loss"] for event in events(run, Step) if "train/loss" in event.metrics}


def test_a_full_disk_does_not_end_the_run(home: Any, small: list[str], small_disk: Callable[[int, Path], Path]) -> None:
    run = home.run("full")
    disk = small_disk(128, run / "checkpoints")  # room for one checkpoint
    words = [f"trainer.total_training_steps={STEPS}", "trainer.save_freq=2", "trainer.experiment_name=full"]
    ran = home.here("train", "algorithm=sft", *small, *words)
    assert ran.returncode == 0, ran.stderr
    alerts = events(run, Alert)
    assert [event.step for event in alerts] == [4, 6]
    for event in alerts:
        name = f"step_{event.step:06d}"
        assert re.match(rf"checkpoint {name} not written: .*No space left on device.*; training goes on", event.text)
    assert [path.name for path in disk.iterdir()] == ["step_000002"] and not faults(disk / "step_000002")
    why = "the last step is not saved; checkpoints/step_000002 is the newest checkpoint"
    assert ran.stderr.endswith(f"✗ {why}\n") and console(run)[-1] == f"finished: {why}"
    assert steps_of(run) == list(range(STEPS + 1))


# ---- a reward that fails for some answers

REWARD = """
import os

def f(data_source, solution_str, ground_truth, extra_info=None):
    if "c" in ground_truth[:2]:
        raise ValueError("a c in it")
    if ground_truth.startswith("a"):
        os._exit(3)
    return {"score": len(set(solution_str) & set(ground_truth)) / 10, "short": len(solution_str) < 6}
"""


def test_a_run_whose_reward_fails_goes_on_and_says_what_was_left_out(home: Any, small: list[str]) -> None:
    """On two processes, too."""
    (home.folder / "mine.py").write_text(REWARD)
    words = ["algorithm=grpo", *small, "sampler.n=4", "reward=python", "reward.path=mine.py", "reward.name=f",
             "trainer.total_training_steps=4", "trainer.test_freq=2", "hardware.nproc_per_node=2"]  # fmt: skip
    ran = home("train", *words, "trainer.experiment_name=faults")
    assert ran.returncode == 0, ran.stderr
    steps = [event.metrics for event in events(home.run("faults"), Step) if event.step]
    assert len(steps) == 4 and any(0 < metrics.get("reward/faults", 0) < 32 for metrics in steps)
    learnt = [metrics for metrics in steps if metrics["actor/skipped_nonfinite"] == 0]
    assert learnt and all(0 <= metrics["critic/score/short/mean"] <= 1 for metrics in learnt)
    text = "\n".join(event.text for event in events(home.run("faults"), Alert))
    assert re.search(r"^reverse:train:.*ValueError: a c in it \(mine.py:6: raise ValueError\(", text, re.MULTILINE)
    assert "its process ended with exit code 3; " in text and "\nreverse:val:" in f"\n{text}"  # held out, too
