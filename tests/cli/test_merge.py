"""`rlrun model merge` as a person types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from launcher.cli.main import app

Look = Callable[..., Result]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The words inside this process, beside the models `x` (ones) and `y` (threes)."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("x", 1.0), ("y", 3.0)):
        Path(name).mkdir()
        Path(name, "config.json").write_text('{"model_type": "plain"}')
        save_file({"w": torch.full((4, 4), value)}, Path(name, "model.safetensors"))
    return lambda *words: CliRunner().invoke(app, ["model", "merge", *words])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--method", "linear", "--weights", "3,1", "--dtype", "bfloat16"], 1.5),
        (["--method", "slerp", "--t", "0.25"], 1.5),
        (["--method", "ties", "--base", "base", "--density", "1"], 2.0),
    ],
)
def test_words_reach_the_formula(words: list[str], value: float, look: Look) -> None:
    Path("base").mkdir()
    Path("base", "config.json").write_text('{"model_type": "plain"}')
    save_file({"w": torch.zeros(4, 4)}, Path("base", "model.safetensors"))
    ran = look("x", "y", "--out", "out", *words)
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("out  0 MB, 1 tensors, 1 files, checked, ")
    (found,) = load_file("out/model.safetensors").values()
    assert json.loads(look("x", "y", "--out", "again", *words, "--json").stdout)["path"] == "again"
    assert found.dtype == (torch.bfloat16 if "--dtype" in words else torch.float32) and (found == value).all()


def test_problems_are_said_all_at_once(look: Look) -> None:
    ran = look("x", "z", "--method", "liner", "--out", "x", "--t", "1")
    assert (ran.exit_code, ran.stdout, ran.stderr.splitlines()) == (2, "", [
        "✗ --method: no method 'liner'; did you mean linear?",
        "✗ z: no such folder; use a model's, a checkpoint's or a run's",
        f"✗ --out: x overlaps with {Path.cwd()}/x; use another folder",
    ])  # fmt: skip
    ran = look("x", "y", "--method", "linear", "--out", "o", "--weights", "1;2")
    assert ran.stderr == "✗ --weights: got '1;2'; use numbers such as 0.7,0.3\n" and not Path("o").exists()
