"""`rlrun checkpoints` on a run that was really trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.core.checkpoints import name_of
from launcher.core.events import Step, events_of

METRIC = "val-core/reverse/reward/mean@1"
STEPS = ["trainer.total_training_steps=6", "trainer.save_freq=1", "trainer.test_freq=1", "trainer.keep_last=2"]
Look = Callable[..., Result]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, commands: Any, small: list[str]) -> Path:
    """The folder beside `runs`. The rate is so high that the loss rises: an early checkpoint is the best."""
    home = tmp_path_factory.mktemp("home")
    words = ["algorithm=sft", *small, *STEPS, "optim.lr=3", "trainer.best_metric=val/loss", "trainer.experiment_name=r"]
    ran = commands(home)("train", *words)
    assert ran.returncode == 0, ran.stderr
    return home


@pytest.fixture
def look(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    monkeypatch.chdir(trained)
    return lambda *words: CliRunner().invoke(app, ["checkpoints", *words])


def losses(home: Path) -> dict[int, float]:
    events = events_of(home / "runs" / "rlrun" / "r" / "events.jsonl")
    return {event.step: event.metrics["val/loss"] for event in events if isinstance(event, Step) and event.step}


def best_of(home: Path) -> int:
    found = losses(home)
    return min(found, key=lambda step: found[step])


@pytest.mark.slow
def test_the_best_that_was_trained_is_still_there(trained: Path, look: Look) -> None:
    best = best_of(trained)
    assert best < 5, "the run gets better to its end, so nothing is shown"
    kept = sorted(path.name for path in (trained / "runs" / "rlrun" / "r" / "checkpoints").iterdir())
    assert kept == [name_of(step) for step in (best, 5, 6)]
    (node,) = (node for node in json.loads(look("r", "--json").stdout) if node["best"])
    assert (node["step"], node["judged_by"], node["score"]) == (best, "val/loss", losses(trained)[best])


@pytest.mark.slow
def test_the_list_says_what_each_is_worth(trained: Path, look: Look) -> None:
    best = best_of(trained)
    ran = look("r")
    assert ran.exit_code == 0
    header, *rows, output = (line.rstrip() for line in ran.stdout.splitlines())
    assert header.split() == ["step", "written", "MB", "files", "val", "loss"] and output == "best by val/loss"
    assert [row.split()[0] for row in rows] == ["6", "5", str(best)]
    assert all("verified" in row for row in rows)
    assert rows[0].endswith("newest") and rows[2].endswith("best") and "best" not in rows[1]
    assert look("list", "r").stdout == ran.stdout
    nodes = json.loads(look("r", "--json").stdout)
    assert [(node["step"], node["best"], node["newest"]) for node in nodes] == [
        (6, False, True), (5, False, False), (best, True, False),
    ]  # fmt: skip
    assert all({METRIC, "val/loss", "train/loss"} <= node["metrics"].keys() and node["verified"] for node in nodes)
    assert "not looked at" in look("r", "--no-verify").stdout


@pytest.mark.slow
@pytest.mark.parametrize("which", [[], ["--best"], ["--step", "5"]])
def test_one_is_exported_and_loads(which: list[str], trained: Path, look: Look, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = look("export", "r", "--to", "hf", "--out", str(out), *which, "--json")
    step = {"--best": best_of(trained), "--step": 5}.get(which[0] if which else "", 6)
    node = json.loads(ran.stdout)
    assert (ran.exit_code, node["step"], node["path"], node["adapter"]) == (0, step, str(out), False)
    model = AutoModelForCausalLM.from_pretrained(out)
    theirs = AutoModelForCausalLM.from_pretrained(trained / "runs/rlrun/r/checkpoints" / name_of(step) / "policy")
    assert all((a == b).all() for a, b in zip(model.parameters(), theirs.parameters(), strict=True))
    again = look("export", "r", "--to", "hf", "--out", str(out))
    assert (again.exit_code, again.stderr) == (2, f"✗ --out: {out} is there already; use a new folder\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["export", "r", "--out", "o", "--best", "--step", "5"], ["--step, --best: both are given; use one"]),
        (["export", "r", "--to", "hf", "--out", "o", "--step", "77"],
         ["--step: rlrun/r has no checkpoint of step 77; it has {}, 5, 6"]),
        (["export", "r", "--to", "hf", "--out", "~nobody42/o"],
         ["~nobody42/o: nobody here has such a home folder; use a whole path"]),
        (["q"], ["'q': no run of that name in runs; it may be rlrun/r"]),
    ],
)  # fmt: skip
def test_words_that_make_no_sense(words: list[str], lines: list[str], trained: Path, look: Look) -> None:
    ran = look(*words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.splitlines() == [f"✗ {line.format(best_of(trained))}" for line in lines]
    assert not (trained / "o").exists()
