"""Whole runs through the real command line: finished, refused, interrupted in every way, and resumed to the same end.

A run costs about five CPU seconds, because torch is loaded; so they are shared.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.core.checkpoints import faults, newest_verified, sha256
from launcher.core.events import Alert, Ended, LogReader, Resumed, Saved, Step, events_of
from launcher.core.state import RunState, fold
from launcher.runs.folder import Folder, holder

pytestmark = pytest.mark.slow

STEPS = 6
SHORT = [f"trainer.total_training_steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=3"]
LAST = 600
LONG = ["algorithm=sft", f"trainer.total_training_steps={LAST}", "trainer.save_freq=20", "trainer.test_freq=50",
        "trainer.micro_batch_size_per_gpu=2", "trainer.max_restarts=0"]  # fmt: skip
"""Five milliseconds a step or more, and every step's gradient moves the weights."""


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    return commands(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def done(rlrun: Any, small: list[str]) -> tuple[Any, Path]:
    """A run that finished, and what it said."""
    ran = rlrun("train", "algorithm=sft", *small, *SHORT, "trainer.experiment_name=done")
    assert ran.returncode == 0, ran.stderr
    return ran, rlrun.run("done")


def copy(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.with_name(name)))


def state_of(run: Path) -> RunState:
    return fold(events_of(run / "events.jsonl"))


def steps_of(run: Path) -> list[int]:
    return [event.step for event in events_of(run / "events.jsonl") if isinstance(event, Step)]


def steps_told(run: Path) -> int:
    log = run / "events.jsonl"
    return log.read_bytes().count(b'"kind":"Step"') if log.exists() else 0


def console(run: Path) -> list[str]:
    return (run / "console.log").read_text().splitlines()


# ---- a run that finishes


def test_a_finished_run_leaves_a_whole_folder_for_its_owner_only(done: tuple[Any, Path]) -> None:
    _, run = done
    top = {path.name for path in run.iterdir()}
    assert top == {
        ".lock",
        "spec.yaml",
        "prepared.json",
        "words.txt",
        "lock.json",
        "events.jsonl",
        "console.log",
        "checkpoints",
        "logs",
    }
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [f"step_{n:06d}" for n in (2, 4, 6)]
    assert not [fault for folder in (run / "checkpoints").iterdir() for fault in faults(folder)]
    assert (run / "logs" / "attempt_1" / "rank-0.log").stat().st_size > 0
    for path in (run, *run.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_its_events_tell_the_whole_story(done: tuple[Any, Path]) -> None:
    _, run = done
    state = state_of(run)
    assert (state.run, state.status, state.step, state.steps) == ("rlrun/done", "finished", STEPS, STEPS)
    assert state.checkpoint == f"checkpoints/step_{STEPS:06d}" and state.alerts == 0 and state.why == ""
    assert steps_of(run) == list(range(STEPS + 1))
    assert [e.step for e in events_of(run / "events.jsonl") if isinstance(e, Saved)] == [2, 4, 6]
    assert holder(Folder(run)) is None


def grep(words: list[str], run: Path) -> list[str]:
    return subprocess.run(["grep", *words, run / "console.log"], capture_output=True, text=True).stdout.splitlines()


def test_what_people_grep_for_in_verls_logs_they_find(done: tuple[Any, Path]) -> None:
    ran, run = done
    assert len(grep(["^step:"], run)) == STEPS + 1
    (third,) = grep(["step:3 "], run)
    assert third.startswith("step:3 - training/global_step:3 - training/epoch:0 - ")
    assert len(grep(["-o", "train/loss:[0-9.]*"], run)) == STEPS
    assert len(grep(["Training Progress"], run)) == STEPS
    assert grep(["Training Progress"], run)[-1].startswith("Training Progress: 100%|██████████| 6/6 [")
    assert len(grep(["-o", "val-core/reverse/reward/mean@1:[0-9.]*"], run)) == 3  # before, at 3, at 6
    assert ran.stdout.splitlines() == console(run)  # a person saw the same
    assert console(run)[-1] == "finished"
    assert ran.stderr.endswith("next: rlrun checkpoints export runs/rlrun/done --to hf --out done-model\n")


def test_its_last_lines_say_what_it_came_to(done: tuple[Any, Path]) -> None:
    _, run = done
    held_out, learnt, moved, _ = console(run)[-4:]
    interval = r"[\d.]+ \[[\d.]+-[\d.]+\]"
    assert re.fullmatch(rf"held out: reverse {interval} at step 6; {interval} at step 0, \S+ ±\S+; .*best.*", held_out)
    assert re.fullmatch(r"learnt from: [\d,]+ tokens with a loss, 100% of the answers with a loss on their end", learnt)
    assert re.fullmatch(r"weights moved: embedding [\d.]+%, attention [\d.]+%, mlp .*, head .*%", moved)


def test_a_ruined_run_is_named_with_a_command_that_works(rlrun: Any, small: list[str]) -> None:
    ruined = ["optim.lr=5", "trainer.total_training_steps=8", "trainer.experiment_name=ruined"]
    ran = rlrun("train", "algorithm=sft", *small, *ruined)
    line = r"finished: the loss rose .*; use (optim\.lr=\S+)(?:; .*)?; next: rlrun (rerun runs/rlrun/ruined \1)"
    match = re.fullmatch(line, ran.stdout.splitlines()[-1])
    assert ran.returncode == 0 and match, ran.stdout
    named = [event for event in events_of(rlrun.run("ruined") / "events.jsonl") if isinstance(event, Alert | Ended)]
    assert isinstance(named[0], Alert) and named[0].text.startswith("the loss rose ")
    assert " doubtful " in rlrun("runs").stdout
    again = rlrun(*match[2].split(), "--dry-run")
    assert (again.returncode, again.stdout) == (0, f"optim.lr: 5.0 -> {match[1].partition('=')[2]}, as asked\n"), again


def test_what_was_typed_can_be_typed_again(done: tuple[Any, Path]) -> None:
    _, run = done
    words = (run / "words.txt").read_text()
    assert words.startswith("rlrun train algorithm=sft model=tiny ") and words.endswith("experiment_name=done\n")
    assert json.loads((run / "lock.json").read_text())["packages"]["torch"]


def test_the_same_name_again_is_refused(done: tuple[Any, Path], rlrun: Any, small: list[str]) -> None:
    _, run = done
    before = kept(run)
    ran = rlrun("train", "algorithm=grpo", *small, "trainer.experiment_name=done")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "✗ trainer.experiment_name: runs/rlrun/done already has results;"
        " use done-2, or rlrun train --resume runs/rlrun/done\n"
    )
    assert kept(run) == before


def kept(run: Path) -> dict[Path, bytes]:
    """All of a run but the name of who wrote it last."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def test_resuming_a_finished_run_changes_nothing(
    done: tuple[Any, Path], rlrun: Any, result: Callable[..., Any]
) -> None:
    _, run = done
    again = copy(run, "again")
    ran = rlrun("train", "--resume", "again")
    assert ran.returncode == 0, ran.stderr
    assert result(again, STEPS) == result(run, STEPS)


# ---- a run that is interrupted in every way, one after the other


@pytest.fixture(scope="module")
def untouched(rlrun: Any, small: list[str]) -> Path:
    ran = rlrun("train", *small, *LONG, "trainer.experiment_name=untouched")
    assert ran.returncode == 0, ran.stderr
    return rlrun.run("untouched")


@dataclass
class Stage:
    """How the run stood after an interruption."""

    exit_code: int
    state: RunState
    newest: str
    ended: list[Ended]
    held_by_child: bool
    """Whether the training process held the run's lock too."""
    refused: list[Any] = field(default_factory=list)


def training_process(launcher: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()  # it, and the sieve of its log
    (worker,) = (child for child in children if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes())
    return int(worker)


def holds_lock(process: int) -> bool:
    return any(os.readlink(file).endswith("/.lock") for file in Path(f"/proc/{process}/fd").iterdir())


INTERRUPTIONS: dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
    "SIGINT": lambda process: process.send_signal(signal.SIGINT),
    "kill -9 of the training process": lambda process: os.kill(training_process(process.pid), signal.SIGKILL),
    "kill -9 of the launcher": lambda process: process.kill(),
}


@pytest.fixture(scope="module")
def stages(rlrun: Any, small: list[str], until: Callable[..., None]) -> dict[str, Stage]:
    """One run, interrupted four times and resumed each time; the last one finishes."""
    run, found = rlrun.run("survivor"), {}
    words = [*small, *LONG, "trainer.experiment_name=survivor"]
    for name, interrupt in [*INTERRUPTIONS.items(), ("nothing", None)]:
        process = rlrun.begin("train", *(["--resume", "survivor"] if found else words))
        until(lambda: holder(Folder(run)))
        others = [["train", *words], ["train", "--resume", "survivor"]] if not found else []
        refused = [rlrun(*other) for other in others]  # while torch is being loaded
        held = False
        if interrupt:
            seen = steps_told(run)
            until(lambda process=process, seen=seen: process.poll() is not None or steps_told(run) >= seen + 6)
            held = holds_lock(training_process(process.pid))
            interrupt(process)
        exit_code = process.wait(timeout=120)
        until(lambda: holder(Folder(run)) is None)
        ended = [event for event in events_of(run / "events.jsonl") if isinstance(event, Ended)]
        newest = newest_verified(run / "checkpoints")[0]
        found[name] = Stage(exit_code, state_of(run), newest.name if newest else "", ended, held, refused)
    return found


def test_a_second_launcher_on_the_same_run_is_refused(stages: dict[str, Stage]) -> None:
    """A new run of its name is also told of results, where the first launcher has already some."""
    held = r"✗ rlrun/survivor: is being written by process \d+ on \S+; rlrun stop runs/rlrun/survivor would end it"
    has_results = r"✗ trainer.experiment_name: runs/rlrun/survivor already has results; .*"
    for ran, expected in zip(stages["SIGTERM"].refused, (f"{held}|{has_results}", held), strict=True):
        assert (ran.returncode, ran.stdout) == (2, "")
        assert re.fullmatch(expected, ran.stderr.splitlines()[-1])


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_saves_the_step_and_ends(stages: dict[str, Stage], name: str, exit_code: int) -> None:
    stage = stages[name]
    assert stage.exit_code == exit_code
    assert 0 < stage.state.step < LAST
    assert stage.newest == f"step_{stage.state.step:06d}"
    (ended,) = stage.ended
    assert ended.how == "stopped" and ended.why == f"{name}; checkpoints/{stage.newest} is the newest checkpoint"


def test_a_killed_training_process_is_told(stages: dict[str, Stage], rlrun: Any) -> None:
    stage = stages["kill -9 of the training process"]
    assert stage.exit_code == 1
    (ended,) = stage.ended
    assert ended.how == "failed"
    assert ended.why.startswith("rank 0: killed by SIGKILL, often because memory ran out; its log is ")
    output = (rlrun.folder / "said").read_text()
    assert f"✗ {ended.why}" in output and "Traceback" not in output


def test_a_killed_launcher_leaves_no_process_behind(stages: dict[str, Stage], rlrun: Any) -> None:
    stage = stages["kill -9 of the launcher"]
    assert (stage.exit_code, stage.ended, stage.state.status) == (-signal.SIGKILL, [], "running")
    assert stage.held_by_child, "until then nobody else may write"
    log = (rlrun.run("survivor") / "logs" / "attempt_4" / "rank-0.log").read_text()
    assert f'"step":{LAST},' not in log, "it ended by itself, and did not train on"


def test_after_all_that_the_run_is_equal_to_one_that_was_never_touched(
    stages: dict[str, Stage], untouched: Path, rlrun: Any, result: Callable[..., Any]
) -> None:
    assert stages["nothing"].exit_code == 0
    run = rlrun.run("survivor")
    assert result(run, LAST) == result(untouched, LAST)
    assert steps_of(run) == list(range(LAST + 1))  # none twice, none missing
    assert len(list((run / "logs").iterdir())) == 5
    first = untouched / "checkpoints" / f"step_{LAST - 20:06d}" / "policy" / "model.safetensors"
    assert sha256(first) != result(untouched, LAST)[1], "and training moved the weights at all"


def test_what_was_undone_stays_in_the_log(stages: dict[str, Stage], rlrun: Any) -> None:
    """The steps after the newest checkpoint were reported before the kill, and are done again."""
    every = [logged.event for logged in LogReader(rlrun.run("survivor") / "events.jsonl").new()]
    back = [place for place, event in enumerate(every) if isinstance(event, Resumed)]
    assert len(back) == len(INTERRUPTIONS)
    for place, (name, before) in zip(back, zip(INTERRUPTIONS, [0, *back], strict=False), strict=True):
        steps = [event.step for event in every[before:place] if isinstance(event, Step)]
        newest = every[place]
        assert isinstance(newest, Resumed) and newest.step == int(stages[name].newest[5:])
        assert steps == list(range(steps[0], steps[-1] + 1)) and steps[-1] >= stages[name].state.step


def test_a_second_signal_ends_at_once(rlrun: Any, small: list[str], until: Callable[..., None]) -> None:
    process = rlrun.begin("train", *small, *LONG, "trainer.experiment_name=twice")
    run = rlrun.run("twice")
    until(lambda: (run / "events.jsonl").exists() and state_of(run).phase == "loading")
    child = training_process(process.pid)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None, "the first signal waits until it can save"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert not list(run.glob("checkpoints/step_*")), "nothing was saved on the way out"
    assert not Path(f"/proc/{child}").exists()
    assert state_of(run).why == "SIGTERM, ended at once; nothing is saved yet"


def test_a_terminal_that_is_closed_saves_the_step(rlrun: Any, small: list[str], until: Callable[..., None]) -> None:
    """The system sends SIGHUP then, and the picture can no longer be drawn."""
    terminal, inside = pty.openpty()

    def become_its_own() -> None:
        os.setsid()
        fcntl.ioctl(inside, termios.TIOCSCTTY, 0)

    words = ["train", *small, *LONG, "trainer.experiment_name=closed"]
    process = rlrun.begin(*words, stdin=inside, stdout=inside, stderr=inside, preexec_fn=become_its_own)
    os.close(inside)
    run, drawn = rlrun.run("closed"), b""
    while steps_told(run) < 5:
        drawn += os.read(terminal, 65536)
    os.close(terminal)
    assert process.wait(timeout=60) == 128 + signal.SIGHUP
    state = state_of(run)
    assert b"rlrun/closed" in drawn
    assert state.why == f"SIGHUP; checkpoints/step_{state.step:06d} is the newest checkpoint"
    assert not faults(run / state.checkpoint)


# ---- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    done: tuple[Any, Path], rlrun: Any, result: Callable[..., Any]
) -> None:
    _, run = done
    damaged = copy(run, "damaged")
    flip(damaged / "checkpoints" / f"step_{STEPS:06d}" / "policy" / "model.safetensors")
    ran = rlrun("train", "--resume", "damaged")
    assert ran.returncode == 0, ran.stderr
    line = (
        "checkpoints/step_000006/policy/model.safetensors: its bytes changed since it was written (sha256 differs);"
        " resumed from step_000004"
    )
    assert [event.text for event in events_of(damaged / "events.jsonl") if isinstance(event, Alert)] == [line]
    assert f"alert at step 4: {line}" in ran.stdout.splitlines()
    assert f"alert at step 4: {line}" in console(damaged)
    events, weights = result(damaged, STEPS)
    assert ([event for event in events if '"Alert"' not in event], weights) == result(run, STEPS)
    assert newest_verified(damaged / "checkpoints") == (damaged / "checkpoints" / "step_000006", [])
    assert (damaged / "checkpoints" / "damaged-step_000006").is_dir(), "what was found damaged is kept to be looked at"


def test_where_every_checkpoint_is_damaged_nothing_is_started(done: tuple[Any, Path], rlrun: Any) -> None:
    _, run = done
    damaged = copy(run, "all-damaged")
    for folder in (damaged / "checkpoints").iterdir():
        flip(folder / "trainer.json")
    ran = rlrun("train", "--resume", "all-damaged")
    assert ran.returncode == 2 and "Traceback" not in ran.stderr
    assert len(ran.stderr.splitlines()) == 4
    assert ran.stderr.splitlines()[-1] == "✗ rlrun/all-damaged: no checkpoint verifies; start a new run"
    assert (damaged / "events.jsonl").read_bytes() == (run / "events.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("spec.yaml", "seed: x\n", "✗ {run}/spec.yaml: algorithm: has no value; "),  # one line for each
        ("spec.yaml", "[", "✗ {run}/spec.yaml: cannot be read, while parsing a flow node; start a new run\n"),
        ("spec.yaml", "", "✗ {run}/spec.yaml: holds no run; use the file of another run\n"),
        ("lock.json", "{", "✗ {run}/lock.json: cannot be read, "),
        ("lock.json", None, "✗ {run}/lock.json: cannot be read, no such file or directory; start a new run\n"),
    ],
)
def test_a_folder_that_lost_what_it_needs_is_refused_in_words(
    done: tuple[Any, Path], rlrun: Any, tmp_path: Path, name: str, text: str | None, line: str
) -> None:
    run = copy(done[1], f"lost-{tmp_path.name}")
    (run / name).unlink() if text is None else (run / name).write_text(text)
    ran = rlrun("train", "--resume", str(run))
    assert ran.returncode == 2 and "Traceback" not in ran.stderr
    assert ran.stderr.startswith(line.format(run=run))


def test_a_full_disk_does_not_end_the_run(
    rlrun: Any, small: list[str], small_disk: Callable[[int, Path], Path]
) -> None:
    run = rlrun.run("full")
    disk = small_disk(128, run / "checkpoints")  # room for one checkpoint
    ran = rlrun("train", "algorithm=sft", *small, *SHORT, "trainer.experiment_name=full")
    assert ran.returncode == 0, ran.stderr
    alerts = [event for event in events_of(run / "events.jsonl") if isinstance(event, Alert)]
    assert [event.step for event in alerts] == [4, 6]
    for event in alerts:
        name = f"step_{event.step:06d}"
        assert re.match(rf"checkpoint {name} not written: .*No space left on device.*; training goes on", event.text)
        assert f"alert at step {event.step}: {event.text}" in console(run)
    assert [path.name for path in disk.iterdir()] == ["step_000002"] and not faults(disk / "step_000002")
    why = "the last step is not saved; checkpoints/step_000002 is the newest checkpoint"
    assert ran.stderr.endswith(f"✗ {why}\n") and console(run)[-1] == f"finished: {why}"
    assert steps_of(run) == list(range(STEPS + 1))
