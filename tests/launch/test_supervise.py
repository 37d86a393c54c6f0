"""Attempts one after the other: what is restarted, when, and what of it is written down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Alert, Crashed, Ended, LogReader, Restarted, Step, events_of
from launcher.launch.supervise import Supervisor, may_restart, pause_s
from launcher.monitor.failure import CODE, KILLED, MEMORY, NODE
from launcher.runs.folder import read_attempts

KILL = {"steps": 3, "code": -9}
DONE = {"steps": 6}
NOWHERE = {"refused": ["cluster: has 1 node of 2; use another"]}
NO_ANSWER = Crashed(lines=("RuntimeError: Read error: Connection reset by peer",), cause="error")
"""All that rank 0 knows while its cluster dies: that the others, which are gone with their nodes, do not answer."""


def flip(run: Path) -> None:
    """Damages the checkpoint of step 2."""
    (run / "checkpoints" / "step_000002" / "x").write_text("y")


def change_data(run: Path) -> None:
    (run / "lock.json").write_text(json.dumps({"data": "another"}))


def ask(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def crashes(code: int, cause: Any, *lines: str) -> dict[str, Any]:
    return {"steps": 1, "saves": (1,), "code": code, "crash": Crashed(lines=lines, cause=cause)}


def saves(step: int) -> dict[str, Any]:
    """Gets on by two steps that are saved, and one that is not."""
    return {**KILL, "saves": (step,)}


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


@dataclass
class End:
    """How a run ends: exit code and status, the causes of its attempts, the steps that stand, and a part of why."""

    script: list[dict[str, Any]]
    how: tuple[int, str]
    causes: list[str]
    steps: list[int]
    why: str = ""
    most: int = 3
    pauses: tuple[float, ...] = (0.0, 0.0, 1.0)
    alerts: tuple[str, ...] = ()


DIED, REFUSED, FINISHED, STOPPED = (1, "failed"), (2, "failed"), (0, "finished"), (143, "stopped")
ENDS = {
    "a cluster that dies": End([{**KILL, "lost": "the cluster does not answer", "crash": NO_ANSWER}, DONE], FINISHED,
                               ["node", "finished"], [1, 2, 3, 4, 5, 6]),
    "no checkpoint between restarts": End([KILL] * 3, DIED, ["killed"] * 3, [1, 2, 3],
                                          "attempt_3/rank-0.log; restarted 2 times without a new checkpoint", most=2),
    "a new checkpoint starts the count again": End([saves(2), saves(4), saves(6), saves(8), {"steps": 1}], FINISHED,
                                                   [*["killed"] * 4, "finished"], [*range(1, 10)],
                                                   most=1, pauses=(0.0,) * 5),
    "configuration": End([crashes(2, "configuration", "a: b; use c", "d: e")], REFUSED, ["configuration"], [1],
                         "rank 0: a: b; use c; d: e; its log"),
    "code": End([crashes(1, "error", "ValueError: x")], DIED, ["code"], [1], "rank 0: ValueError: x; its log"),
    "numbers": End([crashes(2, "numbers", "step 9: loss is not finite, 5 steps in a row")], REFUSED, ["numbers"], [1],
                   "rank 0: step 9"),
    "disk": End([crashes(1, "error", "OSError: No space left on device")], DIED, ["disk"], [1],
                "free space on the disk"),
    "a cluster that cannot start again is like a lost node": End([KILL, NOWHERE, DONE], FINISHED,
                                                                 ["killed", "node", "finished"], [1, 2, 3, 4, 5, 6]),
    "a cluster that never starts again": End([KILL, NOWHERE, NOWHERE], REFUSED, ["killed", "node", "node"], [],
                                             "cluster: has 1 node of 2; use another", most=2),
    "a checkpoint broke meanwhile": End([{**KILL, "saves": (1, 2), "during": flip}, {"steps": 2}], FINISHED,
                                        ["killed", "finished"], [1, 2, 3],
                                        alerts=("sha256 differs); resumed from step_000001",)),
    "the only checkpoint broke": End([{**saves(2), "during": flip}], REFUSED, ["configuration"], [1, 2, 3],
                                     "(sha256 differs); p/a: no checkpoint verifies; start a new run"),
    "other data": End([{**saves(2), "during": change_data}], REFUSED, ["configuration"], [1, 2, 3],
                      "data: is not what the run began with"),
    "a signal is passed on": End([{"steps": 3, "saves": (2,), "during": ask}], STOPPED, ["stopped"], [1, 2, 3],
                                 "SIGTERM; checkpoints/step_000002 is the newest checkpoint"),
    "SIGINT to a process itself": End([{**saves(1), "code": 130}], (130, "stopped"), ["stopped"], [1, 2, 3],
                                      "SIGINT to rank 0; checkpoints/step_000001 is"),
    "SIGTERM to a process without a handler yet": End([{**saves(1), "code": -15}], STOPPED, ["stopped"], [1, 2, 3],
                                                      "SIGTERM to rank 0; checkpoints/step_000001 is"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_is_restarted_and_how_it_ends(supervised: Callable[..., Any], end: End) -> None:
    ran = supervised(end.script, end.most)
    state, crash = ran.outcome.state, ran.outcome.crash
    assert (ran.outcome.exit_code, state.status) == end.how
    assert (ran.causes, ran.steps) == (end.causes, end.steps) and end.why in state.why
    assert len(ran.told(Restarted)) == state.restarts == len(end.causes) - 1
    assert ran.pauses == [*end.pauses][: len(end.causes)]
    assert [alert.text.partition("(")[2] for alert in ran.told(Alert)] == [*end.alerts]
    if "crash" in end.script[-1]:
        assert crash == end.script[-1]["crash"]
    elif end.how == REFUSED:  # with the fault before it where nothing is left to go on from
        assert "; ".join(crash.lines) in state.why
        assert ("killed by SIGKILL" in crash.lines[0]) == ("during" in end.script[0])


def test_who_may_restart_and_pauses_grow_to_a_minute() -> None:
    assert may_restart(KILLED, [KILLED, NODE], 3) and not may_restart(KILLED, [KILLED, NODE, KILLED], 3)
    assert may_restart(MEMORY, [KILLED], 3) and not may_restart(MEMORY, [MEMORY], 3), "it would run out again"
    assert not may_restart(MEMORY, [], 0) and not may_restart(CODE, [], 3)
    assert [pause_s(number) for number in range(9)] == [0, 0, 1, 2, 4, 8, 16, 32, 60]


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


# ---- a critical finding: nothing follows, a checkpoint and a pause, or the end

FINDS = ["health.rules.no-signal.metric=loss", "health.rules.no-signal.when='last(loss) >= 1'",
         "health.rules.no-signal.text='answers to a prompt had the same score'",
         "health.rules.no-signal.fix={rlrun: 'sampler.n=16'}"]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "exit_code", "how", "why"),
    [
        ("pause", 143, "stopped", "paused by no-signal at step 1: "),
        ("stop", 1, "failed", "stopped by no-signal at step 1: "),
        ("warn", 0, "finished", "answers to a prompt had the same score"),
    ],
)
def test_a_critical_finding(supervised: Callable[..., Any], what: str, exit_code: int, how: str, why: str) -> None:
    ran = supervised([{"steps": 3, "saves": (3,)}], words=[*FINDS, f"health.on_critical={what}"])
    critical, *others = [alert for alert in ran.told(Alert) if alert.level == "critical"]
    assert critical.rule == "no-signal" and others == []
    (ended,) = ran.told(Ended)
    assert (ran.outcome.exit_code, ended.how) == (exit_code, how) and ended.why.startswith(why)
    assert ended.following[0] == ("logs" if what == "stop" else "rerun"), "what is advised may not change on a resume"
    again = ran.resumed({"steps": 2})  # the finding is known, and ends it no second time
    assert (again.exit_code, again.state.step) == (0, 5)
