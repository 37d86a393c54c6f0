"""`rlrun reward bench` and `rlrun model merge` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from launcher.cli.main import app


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rlrun(*words: str) -> Result:
    return CliRunner().invoke(app, words)


# ---- what a reward gives

GOLD = {"question": "1+1?", "answer": "It is 2\n#### 2", "data_source": "openai/gsm8k"}
BENCH = ["reward", "bench", "data=files", "data.train_batch_size=1", "data.train_files=rows.jsonl"]
SUMS = [GOLD | {"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(5)]


def bench(rows: list[dict[str, Any]], *words: str) -> Result:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rlrun(*BENCH, *words)


def test_a_good_reward_ends_with_0_and_a_table() -> None:
    ran = bench(SUMS, "reward=gsm8k", "--rows", "4")
    assert (ran.exit_code, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == "GSM8K over 4 rows" and lines[2].startswith("gold ")
    assert "scored twice        equal" in lines and lines[-1] == "✓ a run can learn from it"


def test_a_bad_reward_ends_with_1_and_says_why() -> None:
    Path("mine.py").write_text("def compute_score(solution_str, ground_truth):\n    return 0.5\n")
    ran = bench(SUMS, "reward=python", "reward.path=mine.py")
    assert (ran.exit_code, ran.stderr) == (1, "")
    assert ran.stdout.splitlines()[-1].endswith("0.5 on average and empty ones 0.5, so nothing can be learnt")


def test_rows_that_a_run_would_refuse_are_named() -> None:
    ran = bench([{"question": 5}, GOLD], "reward=gsm8k")
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("refused")]
    assert "rows.jsonl:1: question" in line
    ran = bench([{"question": 5}], "reward=gsm8k")
    assert ran.exit_code == 2 and "rows.jsonl:1: question" in ran.stderr


# ---- weights of several models


def merge(*words: str) -> Result:
    """Beside the models `x` (ones), `y` (threes) and `base` (zeros)."""
    for name, value in (("x", 1.0), ("y", 3.0), ("base", 0.0)):
        Path(name).mkdir(exist_ok=True)
        Path(name, "config.json").write_text('{"model_type": "plain"}')
        save_file({"w": torch.full((4, 4), value)}, Path(name, "model.safetensors"))
    return rlrun("model", "merge", *words)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--method", "linear", "--weights", "3,1"], 1.5),
        (["--method", "slerp", "--t", "0.25"], 1.5),
        (["--method", "ties", "--base", "base", "--density", "1"], 2.0),
    ],
)
def test_words_reach_the_formula(words: list[str], value: float) -> None:
    ran = merge("x", "y", "--out", "out", *words)
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout.startswith("out  0 MB, 1 tensors, 1 files, checked, ")
    (found,) = load_file("out/model.safetensors").values()
    assert json.loads(merge("x", "y", "--out", "again", *words, "--json").stdout)["path"] == "again"
    assert found.dtype == torch.float32 and (found == value).all()


def test_problems_of_a_merge_are_said_all_at_once() -> None:
    ran = merge("x", "z", "--method", "liner", "--out", "x", "--t", "1")
    assert (ran.exit_code, ran.stdout, ran.stderr.splitlines()) == (2, "", [
        "✗ --method: no method 'liner'; did you mean linear?",
        "✗ z: no such folder; use a model's, a checkpoint's or a run's",
        f"✗ --out: x overlaps with {Path.cwd()}/x; use another folder",
    ])  # fmt: skip
    ran = merge("x", "y", "--method", "linear", "--out", "o", "--weights", "1;2")
    assert ran.stderr == "✗ --weights: got '1;2'; use numbers such as 0.7,0.3\n" and not Path("o").exists()
