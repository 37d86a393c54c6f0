"""Attempts one after the other: what is restarted, when, and what of it is written down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Alert, Crashed, LogReader, Restarted, Step, events_of
from launcher.launch.supervise import Supervisor, may_restart, pause_s
from launcher.monitor.failure import CODE, KILLED, MEMORY, NODE
from launcher.runs.folder import read_attempts

KILL = {"steps": 3, "code": -9}
DONE = {"steps": 6}


def test_a_killed_process_is_started_again_and_nothing_is_told_twice(supervised: Callable[..., Any]) -> None:
    ran = supervised([{"steps": 3, "saves": (2,), "code": -9}, {"steps": 4, "saves": (6,)}])
    assert (ran.outcome.exit_code, ran.outcome.state.status, ran.outcome.state.restarts) == (0, "finished", 1)
    assert ran.steps == [1, 2, 3, 4, 5, 6]
    (again,) = ran.told(Restarted)
    assert isinstance(again, Restarted) and (again.step, again.attempt, again.cause) == (2, 2, "killed")
    kinds = [type(event).__name__ for event in events_of(ran.folder.events)]
    assert kinds == ["Started", "Step", "Step", "Restarted", "Step", "Step", "Step", "Step", "Ended"]
    first, last = read_attempts(ran.folder)
    assert first.ended and (first.cause, first.step) == ("killed", 3)
    assert first.why == again.why and "rank 0: killed by SIGKILL" in again.why and "attempt_1/rank-0.log" in again.why
    assert last.ended and (last.cause, last.why, last.step) == ("finished", "", 6)
    logged = list(LogReader(ran.folder.events).new())
    assert [each.seq for each in logged] == list(range(10)), "and a name's odd letters end no line"
    assert [each.attempt for each in logged] == [1] * 4 + [2] * 6
    assert [each.event.step for each in logged if isinstance(each.event, Step)] == [1, 2, 3, 3, 4, 5, 6]
    console = ran.folder.console.read_text().splitlines()
    assert f"restart 1: {again.why}; attempt 2 went back to step 2" in console


def test_what_rank_0_says_while_its_cluster_dies_is_not_why(supervised: Callable[..., Any]) -> None:
    """The others are gone with their nodes; that they do not answer is all that it knows."""
    crash = Crashed(lines=("RuntimeError: Read error: Connection reset by peer",), cause="error")
    ran = supervised([{"steps": 2, "code": -9, "lost": "the cluster does not answer", "crash": crash}, DONE])
    assert ran.outcome.exit_code == 0 and ran.causes == ["node", "finished"]


def test_restarts_without_a_checkpoint_between_them_are_counted(supervised: Callable[..., Any]) -> None:
    ran = supervised([KILL, KILL, KILL], most=2)
    assert (ran.outcome.exit_code, ran.outcome.state.status) == (1, "failed")
    assert ran.pauses == [0.0, 0.0, 1.0]
    assert ran.outcome.state.why.endswith("attempt_3/rank-0.log; restarted 2 times without a new checkpoint")
    assert ran.steps == [1, 2, 3], "what the last attempt told stays to be looked at"
    assert ran.causes == ["killed", "killed", "killed"] and len(ran.told(Restarted)) == 2


def test_a_new_checkpoint_starts_the_count_again(supervised: Callable[..., Any]) -> None:
    def gets_on(begin: int) -> dict[str, Any]:
        return {"steps": 3, "saves": (begin + 2,), "code": -9}

    ran = supervised([gets_on(0), gets_on(2), gets_on(4), gets_on(6), {"steps": 1}], most=1)
    assert ran.outcome.exit_code == 0 and ran.outcome.state.restarts == 4
    assert ran.steps == list(range(1, 10)) and ran.pauses == [0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("lines", "kind", "exit_code", "cause", "why"),
    [
        (("a: b; use c", "d: e"), "configuration", 2, "configuration", "rank 0: a: b; use c; d: e; its log"),
        (("ValueError: x",), "error", 1, "code", "rank 0: ValueError: x; its log"),
        (("step 9: loss is not finite, 5 steps in a row",), "numbers", 2, "numbers", "rank 0: step 9"),
        (("OSError: No space left on device",), "error", 1, "disk", "free space on the disk"),
    ],
    ids=["configuration", "code", "numbers", "disk"],
)
def test_what_would_come_again_is_not_retried(
    supervised: Callable[..., Any], lines: tuple[str, ...], kind: Any, exit_code: int, cause: str, why: str
) -> None:
    crash = Crashed(lines=lines, cause=kind)
    ran = supervised([{"steps": 1, "saves": (1,), "code": exit_code, "crash": crash}])
    assert (ran.outcome.exit_code, ran.outcome.crash, ran.causes) == (exit_code, crash, [cause])
    assert why in ran.outcome.state.why and ran.told(Restarted) == []


def test_who_may_restart_and_pauses_grow_to_a_minute() -> None:
    assert may_restart(KILLED, [KILLED, NODE], 3) and not may_restart(KILLED, [KILLED, NODE, KILLED], 3)
    assert may_restart(MEMORY, [KILLED], 3) and not may_restart(MEMORY, [MEMORY], 3), "it would run out again"
    assert not may_restart(MEMORY, [], 0) and not may_restart(CODE, [], 3)
    assert [pause_s(number) for number in range(9)] == [0, 0, 1, 2, 4, 8, 16, 32, 60]


# ---- between two attempts


def test_a_cluster_that_cannot_start_again_is_tried_like_a_lost_node(supervised: Callable[..., Any]) -> None:
    nowhere = {"refused": ["cluster: has 1 node of 2; use another"]}
    ran = supervised([KILL, nowhere, DONE])
    assert ran.outcome.exit_code == 0 and ran.causes == ["killed", "node", "finished"]


def test_where_it_cannot_start_at_all_that_is_said(supervised: Callable[..., Any]) -> None:
    ran = supervised([KILL, *[{"refused": ["cluster: has 1 node of 2; use another"]}] * 2], most=2)
    assert (ran.outcome.exit_code, ran.outcome.state.status) == (2, "failed")
    assert ran.outcome.crash and ran.outcome.crash.lines == ("cluster: has 1 node of 2; use another",)


@pytest.fixture
def flip(tmp_path: Path) -> Callable[[], None]:
    """Damages the checkpoint of step 2."""
    return lambda: (tmp_path / "p" / "a" / "checkpoints" / "step_000002" / "x").write_text("y")


def test_a_checkpoint_that_broke_meanwhile_is_told(supervised: Callable[..., Any], flip: Callable[[], None]) -> None:
    ran = supervised([{"steps": 3, "saves": (1, 2), "code": -9, "during": flip}, {"steps": 2}])
    assert ran.outcome.exit_code == 0 and ran.steps == [1, 2, 3]
    (alert,) = ran.told(Alert)
    assert isinstance(alert, Alert) and alert.text.endswith("(sha256 differs); resumed from step_000001")


def test_where_no_checkpoint_verifies_it_fails_with_both_reasons(
    supervised: Callable[..., Any], flip: Callable[[], None]
) -> None:
    ran = supervised([{"steps": 3, "saves": (2,), "code": -9, "during": flip}])
    assert ran.outcome.exit_code == 2 and ran.outcome.crash and len(ran.outcome.crash.lines) == 3
    assert "killed by SIGKILL" in ran.outcome.crash.lines[0] and ran.steps == [1, 2, 3]
    assert ran.outcome.crash.lines[-1] == "p/a: no checkpoint verifies; start a new run"


def test_other_data_is_not_gone_on_with(supervised: Callable[..., Any], tmp_path: Path) -> None:
    def change() -> None:
        (tmp_path / "p" / "a" / "lock.json").write_text(json.dumps({"data": "another"}))

    ran = supervised([{"steps": 3, "saves": (2,), "code": -9, "during": change}])
    assert ran.outcome.exit_code == 2 and "data: is not what the run began with" in ran.outcome.state.why


# ---- asked to end


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_passed_on_and_is_no_fault(supervised: Callable[..., Any]) -> None:
    ran = supervised([{"steps": 3, "saves": (2,), "during": ask}])
    assert (ran.outcome.exit_code, ran.outcome.state.status, ran.causes) == (143, "stopped", ["stopped"])
    assert ran.outcome.state.why == "SIGTERM; checkpoints/step_000002 is the newest checkpoint"


def test_a_signal_in_the_pause_ends_the_run(supervised: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor_pause = Supervisor._pause

    def pause(self: Supervisor, seconds: float, *more: object) -> bool:
        if read_attempts(self.folder):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            seconds = 30.0
        return supervisor_pause(self, seconds, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Supervisor, "_pause", pause)
    before = signal.signal(signal.SIGALRM, lambda *_: ask())
    try:
        ran = supervised([{"steps": 3, "saves": (2,), "code": -9}])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (ran.outcome.exit_code, ran.outcome.state.status) == (143, "stopped")
    assert ran.causes == ["killed"] and ran.steps == [1, 2], "nothing was started, and the way to go on is there"


@pytest.mark.parametrize(("code", "name"), [(130, "SIGINT"), (-15, "SIGTERM")])
def test_a_process_that_was_asked_itself_is_no_fault(supervised: Callable[..., Any], code: int, name: str) -> None:
    """Negative: before its signal handler was installed."""
    ran = supervised([{"steps": 1, "saves": (1,), "code": code}])
    assert ran.outcome.exit_code == 128 + getattr(signal, name) and ran.outcome.state.status == "stopped"
    assert ran.outcome.state.why.startswith(f"{name} to rank 0; checkpoints/step_000001 is")
