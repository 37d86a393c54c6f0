"""Between two attempts, and when a run is asked to end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Alert
from launcher.launch.supervise import Supervisor
from launcher.runs.folder import read_attempts

KILL = {"steps": 3, "code": -9}
DONE = {"steps": 6}


def test_a_cluster_that_cannot_start_again_is_tried_like_a_lost_node(supervised: Callable[..., Any]) -> None:
    nowhere = {"refused": ["cluster: has 1 node of 2; use another"]}
    ran = supervised([KILL, nowhere, DONE])
    assert ran.outcome.exit_code == 0 and ran.causes == ["killed", "node", "finished"]


def test_where_it_cannot_start_at_all_that_is_said(supervised: Callable[..., Any]) -> None:
    ran = supervised([KILL, *[{"refused": ["cluster: has 1 node of 2; use another"]}] * 2], most=2)
    assert (ran.outcome.exit_code, ran.outcome.state.status) == (2, "failed")
    assert ran.outcome.crash and ran.outcome.crash.lines == ("cluster: has 1 node of 2; use another",)


def test_a_checkpoint_that_broke_meanwhile_is_told(supervised: Callable[..., Any], tmp_path: Path) -> None:
    def flip() -> None:
        (tmp_path / "p" / "a" / "checkpoints" / "step_000002" / "x").write_text("y")

    ran = supervised([{"steps": 3, "saves": (1, 2), "code": -9, "during": flip}, {"steps": 2}])
    assert ran.outcome.exit_code == 0 and ran.steps == [1, 2, 3]
    (alert,) = ran.told(Alert)
    assert isinstance(alert, Alert) and alert.text.endswith("(sha256 differs); resumed from step_000001")


def test_where_no_checkpoint_verifies_it_fails_with_both_reasons(
    supervised: Callable[..., Any], tmp_path: Path
) -> None:
    def flip() -> None:
        (tmp_path / "p" / "a" / "checkpoints" / "step_000002" / "x").write_text("y")

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


@pytest.mark.parametrize(("code", "name"), [(143, "SIGTERM"), (130, "SIGINT"), (-15, "SIGTERM"), (-1, "SIGHUP")])
def test_a_process_that_was_asked_itself_is_no_fault(supervised: Callable[..., Any], code: int, name: str) -> None:
    """Negative: before its signal handler was installed."""
    ran = supervised([{"steps": 1, "saves": (1,), "code": code}])
    assert ran.outcome.exit_code == 128 + getattr(signal, name) and ran.outcome.state.status == "stopped"
    assert ran.outcome.state.why.startswith(f"{name} to rank 0; checkpoints/step_000001 is")
