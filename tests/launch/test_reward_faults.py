"""A run whose reward fails for some answers goes on, tells it, and is the same again: resumed, and on two processes."""

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


@pytest.fixture(scope="module")
def rlrun(tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Any:
    folder = tmp_path_factory.mktemp("home")
    (folder / "mine.py").write_text(REWARD)
    return commands(folder)


@pytest.fixture(scope="module")
def words(small: list[str]) -> list[str]:
    return ["algorithm=grpo", *small, "sampler.n=4", "reward=python", "reward.path=mine.py", "reward.name=f",
            f"trainer.total_training_steps={STEPS}", "trainer.save_freq=2", "trainer.test_freq=2"]  # fmt: skip


@pytest.fixture(scope="module")
def done(rlrun: Any, words: list[str]) -> Path:
    ran = rlrun("train", *words, "trainer.experiment_name=done")
    assert ran.returncode == 0, ran.stderr
    return rlrun.run("done")


@pytest.mark.slow
def test_the_run_goes_on_and_says_what_was_left_out(done: Path) -> None:
    events = list(events_of(done / "events.jsonl"))
    steps = [event for event in events if isinstance(event, Step) and event.step]
    assert [event.step for event in steps] == list(range(1, STEPS + 1))
    assert any(0 < event.metrics.get("reward/faults", 0) < 32 for event in steps)
    learnt = [event for event in steps if event.metrics["actor/skipped_nonfinite"] == 0]
    assert learnt and all(0 <= event.metrics["critic/score/short/mean"] <= 1 for event in learnt)
    told = [event.text for event in events if isinstance(event, Alert)]
    assert any(text.startswith("reverse:train:") and "ValueError: a c in it (mine.py:6); " in text for text in told)
    assert any("its process ended with exit code 3; " in text for text in told)
    assert any(text.startswith("reverse:val:") for text in told)  # held out, too


@pytest.mark.slow
def test_two_processes_tell_the_same(done: Path, rlrun: Any, words: list[str]) -> None:
    ran = rlrun("train", *words, "hardware.nproc_per_node=2", "trainer.experiment_name=two")
    assert ran.returncode == 0, ran.stderr
    ours, theirs = ([event.text for event in events_of(run / "events.jsonl") if isinstance(event, Alert)]
                    for run in (done, rlrun.run("two")))  # fmt: skip
    assert ours == theirs
    assert faults_of(done) == faults_of(rlrun.run("two"))


def faults_of(run: Path) -> list[float | None]:
    steps = [event for event in events_of(run / "events.jsonl") if isinstance(event, Step)]
    return [step.metrics.get("reward/faults") for step in steps]
