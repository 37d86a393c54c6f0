"""What follows from a critical finding: nothing, a checkpoint and a pause, or the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launcher.core.events import Alert, Ended

FINDS = ["health.rules.no-signal.metric=loss", "health.rules.no-signal.when='last(loss) >= 1'",
         "health.rules.no-signal.text='answers to a prompt had the same score'",
         "health.rules.no-signal.fix={rlrun: 'sampler.n=16'}"]  # fmt: skip
THREE = {"steps": 3, "saves": (3,)}


@pytest.mark.parametrize(
    ("what", "exit_code", "how", "why"),
    [
        ("pause", 143, "stopped", "paused by no-signal at step 1: "),
        ("stop", 1, "failed", "stopped by no-signal at step 1: "),
        ("warn", 0, "finished", "answers to a prompt had the same score"),
    ],
)
def test_a_critical_finding(supervised: Callable[..., Any], what: str, exit_code: int, how: str, why: str) -> None:
    ran = supervised([THREE], words=[*FINDS, f"health.on_critical={what}"])
    critical, *others = [alert for alert in ran.told(Alert) if alert.level == "critical"]
    assert critical.rule == "no-signal" and others == []
    (ended,) = ran.told(Ended)
    assert (ran.outcome.exit_code, ended.how) == (exit_code, how) and ended.why.startswith(why)
    assert ended.following[0] == ("logs" if what == "stop" else "rerun"), "what is advised may not change on a resume"
    again = ran.resumed({"steps": 2})  # the finding is known, and ends it no second time
    assert (again.exit_code, again.state.step) == (0, 5)
