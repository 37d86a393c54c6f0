"""Run folders for the reports: one that was really trained, and ones written by hand for what no training shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.events import (
    Event,
    HeldOutScores,
    Loaded,
    LoggedEvent,
    Sample,
    Started,
    Step,
)
from launcher.core.metrics import wilson
from launcher.core.prompt_scores import held_out_scores, prompt_digest
from launcher.runs.folder import Folder

SPEC = """
algorithm: {_target_: launcher.algorithms.grpo.GRPO, kl_loss_coef: 0.001}
data: {_target_: launcher.data.reverse.Reverse, max_response_length: 12}
reward: {_target_: launcher.rewards.gsm8k.GSM8K}
optim: {lr: 1.0e-06}
seed: 0
"""
MEAN, LOW, HIGH = (f"val-{name}@1" for name in (
    "core/gsm8k/reward/mean", "aux/gsm8k/reward/wilson95_low", "aux/gsm8k/reward/wilson95_high",
))  # fmt: skip

MakeRun = Callable[..., Folder]


def write_events(folder: Folder, events: Iterable[Event]) -> None:
    lines = [LoggedEvent(seq, 1, event).line for seq, event in enumerate(events)]
    folder.events.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run's folder with these events."""

    def make(events: Iterable[Event] = (), name: str = "one", spec: str | None = SPEC) -> Folder:
        folder = Folder(tmp_path / "runs" / "p" / name)
        folder.path.mkdir(parents=True)
        if spec is not None:
            folder.spec.write_text(spec)
        write_events(folder, events)
        return folder

    return make


def validated(step: int, right: int, of: int, **metrics: float) -> Step:
    """A step with a validation in which `right` of `of` answers were right."""
    low, high = wilson(right / of, of)
    return Step(at=100.0 + step, step=step, metrics={MEAN: right / of, LOW: low, HIGH: high, **metrics})


def answers(step: int, scores: Iterable[float], **texts: Any) -> list[Sample]:
    """An answer for each score; the prompts are numbered."""
    return [
        Sample(at=100.0 + step, step=step, score=score,
               **{"data_source": "gsm8k", "prompt": f"question {number}", "ground_truth": "1",
                  "response": "#### 1" if score else "#### 2"} | texts)
        for number, score in enumerate(scores)
    ]  # fmt: skip


def single_scores(step: int, scores: Iterable[float], source: str = "gsm8k") -> list[HeldOutScores]:
    """The scores of the prompts that `answers` numbers."""
    means = [(source, prompt_digest(f"question {number}", "1"), score) for number, score in enumerate(scores)]
    return held_out_scores(step, means)


def begin(rows: int = 10, steps: int = 100) -> list[Event]:
    loaded = Loaded(at=2.0, rows=100, refused=0, val_rows=rows, val_refused=0, steps_per_epoch=steps, steps=steps)
    return [Started(at=1.0, run="p/one", algorithm="GRPO", processes=1), loaded]


@pytest.fixture(scope="session")
def logged() -> SimpleNamespace:
    """What makes the events of a run."""
    return SimpleNamespace(
        begin=begin, answers=answers, scores=single_scores, validated=validated, write=write_events, mean=MEAN
    )


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line inside this process, where `make_run` puts its runs."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture(scope="session")
def trained(made_once: Any, commands: Any, small: list[str]) -> Any:
    """`rlrun` in a folder with the run `one`, which logs all held-out answers, and `two`, its copy of another seed."""
    words = ["algorithm=grpo", *small, "reward=weighted", "reward.parts={exact:1.0,format:0.2}",
             "trainer.total_training_steps=12", "trainer.test_freq=4", "trainer.log_val_generations=8",
             "trainer.save_freq=-1", "algorithm.kl_loss_coef=0.001", "cluster.usage_s=1"]  # fmt: skip

    def train(folder: Path) -> None:
        ran = commands(folder)("train", *words, "trainer.experiment_name=one")
        assert commands(folder).run("one").is_dir(), ran.stderr

    rlrun = commands(made_once("reports", train))
    two = Folder(shutil.copytree(rlrun.run("one"), rlrun.run("one").with_name("two")))
    two.spec.write_text(two.spec.read_text().replace("seed: 0", "seed: 1").replace("name: one", "name: two"))
    return rlrun
