"""Evaluations that name their steps, and answers behind times: of their step, and as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.events import Sample, Step
from launcher.logs.sources import open_log

EVALUATIONS = {
    "LLaMA-Factory": (
        '{"current_steps": %d, "total_steps": 20, "loss": 1.9, "lr": 1e-05, "epoch": 0.5, "percentage": 50.0}',
        '{"current_steps": %d, "total_steps": 20, "eval_loss": 1.7, "epoch": 0.5, "percentage": 50.0}',
    ),
    "ms-swift": (
        '{"loss": 1.9, "grad_norm": 0.5, "learning_rate": 1e-05, "epoch": 0.5, "global_step/max_steps": "%d/20"}',
        '{"eval_loss": 1.7, "eval_runtime": 1.2, "epoch": 0.5, "global_step/max_steps": "%d/20", "memory(GiB)": 12.5}',
    ),
}


@pytest.mark.parametrize("program", EVALUATIONS)
def test_an_evaluation_that_names_its_step_is_of_that_step(program: str, tmp_path: Path) -> None:
    """Also where it stands before the first training step. A smaller number is of another count: of its own batches."""
    trained, evaluated = EVALUATIONS[program]
    lines = [evaluated % 0, trained % 10, evaluated % 10, trained % 20, evaluated % 1, trained % 30, evaluated % 35]
    (path := tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    found = [event for event in open_log(path).events() if isinstance(event, Step)]
    assert [(step.step, "eval_loss" in step.metrics, "loss" in step.metrics) for step in found] == [
        (0, True, False), (10, False, True), (10, True, False), (20, False, True), (30, False, True), (35, True, False)
    ]  # fmt: skip


ANSWER = (
    "[prompt] what?\n[response] 1: first\n\n2: (then\n20 files, 2025-05-01 10:00:00 INFO x\n"
    "[ground_truth] 2\n[score] 1.0\n"
)
ANSWERED = f"step:1 - a/b:1\n{ANSWER}step:2 - a/b:2\n{ANSWER}Final validation metrics: {{'val/x': 0.5}}\n"


def steps_and_answers(path: Path, text: str) -> list[tuple[object, ...]]:
    path.write_text(text)
    return [
        (event.step, event.metrics) if isinstance(event, Step) else (event.step, event.response, event.score)
        for event in open_log(path).events()
        if isinstance(event, Step | Sample)
    ]


@pytest.mark.parametrize("prefix", ["2025-05-01 10:00:00,123 INFO ", "2025-05-01 10:00:00 - INFO - "])
def test_answers_behind_a_time_are_those_without(prefix: str, tmp_path: Path) -> None:
    plain = steps_and_answers(tmp_path / "plain.log", ANSWERED)
    assert plain[1] == (2, "1: first\n\n2: (then\n20 files, 2025-05-01 10:00:00 INFO x", 1.0), (
        "numbers within an answer stay"
    )
    assert plain[-1] == (3, {"val/x": 0.5})
    assert (
        steps_and_answers(tmp_path / "a.log", "".join(f"{prefix}{line}\n" for line in ANSWERED.splitlines())) == plain
    )
