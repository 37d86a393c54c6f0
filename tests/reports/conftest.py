"""Run folders for the reports: one that was really trained, and ones written by hand for what no training shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.events import Event
from launcher.runs.folder import Folder
from launcher.views.record import RunRecord, read_record
from tests.reports.made import write_events

SPEC = """
algorithm: {_target_: launcher.algorithms.grpo.GRPO, kl_loss_coef: 0.001}
data: {_target_: launcher.data.reverse.Reverse, max_response_length: 12}
reward: {_target_: launcher.rewards.gsm8k.GSM8K}
optim: {lr: 1.0e-06}
seed: 0
"""


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Folder]:
    """A run's folder with these events."""

    def make(events: Iterable[Event] = (), name: str = "one", spec: str | None = SPEC) -> Folder:
        folder = Folder(tmp_path / "runs" / "p" / name)
        folder.path.mkdir(parents=True)
        if spec is not None:
            folder.spec.write_text(spec)
        write_events(folder, events)
        return folder

    return make


@pytest.fixture
def record(make_run: Callable[..., Folder]) -> Callable[..., RunRecord]:
    return lambda *args, **more: read_record(make_run(*args, **more))


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
