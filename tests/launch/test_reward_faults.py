"""A run whose reward fails for some answers goes on and tells it, on two processes, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.core.events import Alert, Step, events_of

REWARD = """
import os

def f(data_source, solution_str, ground_truth, extra_info=None):
    if "c" in ground_truth[:2]:
        raise ValueError("a c in it")
    if ground_truth.startswith("a"):
        os._exit(3)
    return {"score": len(set(solution_str) & set(ground_truth)) / 10, "short": len(solution_str) < 6}
"""
STEPS = 4


@pytest.mark.slow
def test_the_run_goes_on_and_says_what_was_left_out(commands: Any, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REWARD)
    rlrun = commands(tmp_path)
    words = ["algorithm=grpo", *small, "sampler.n=4", "reward=python", "reward.path=mine.py", "reward.name=f",
             f"trainer.total_training_steps={STEPS}", "trainer.test_freq=2", "hardware.nproc_per_node=2"]  # fmt: skip
    ran = rlrun("train", *words, "trainer.experiment_name=done")
    assert ran.returncode == 0, ran.stderr
    events = list(events_of(rlrun.run("done") / "events.jsonl"))
    steps = [event for event in events if isinstance(event, Step) and event.step]
    assert [event.step for event in steps] == list(range(1, STEPS + 1))
    assert any(0 < event.metrics.get("reward/faults", 0) < 32 for event in steps)
    learnt = [event for event in steps if event.metrics["actor/skipped_nonfinite"] == 0]
    assert learnt and all(0 <= event.metrics["critic/score/short/mean"] <= 1 for event in learnt)
    texts = [event.text for event in events if isinstance(event, Alert)]
    assert any(
        text.startswith("reverse:train:") and "ValueError: a c in it (mine.py:6: raise ValueError(" in text
        for text in texts
    )
    assert any("its process ended with exit code 3; " in text for text in texts)
    assert any(text.startswith("reverse:val:") for text in texts)  # held out, too
