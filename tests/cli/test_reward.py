"""`rlrun reward bench` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher.cli.main import app

GOLD = {"question": "1+1?", "answer": "It is 2\n#### 2", "data_source": "openai/gsm8k"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [GOLD | {"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def rlrun(*words: str) -> Result:
    return CliRunner().invoke(app, words)


BENCH = ["reward", "bench", "data=files", "data.train_batch_size=1", "data.train_files=rows.jsonl"]


def test_a_good_reward_ends_with_0_and_a_table(home: Path) -> None:
    ran = rlrun(*BENCH, "reward=gsm8k", "--rows", "4")
    assert (ran.exit_code, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == "GSM8K over 4 rows"
    assert lines[2].startswith("gold ")
    assert "scored twice        equal" in lines and lines[-1] == "✓ a run can learn from it"


def test_a_bad_reward_ends_with_1_and_says_why(home: Path) -> None:
    (home / "mine.py").write_text("def compute_score(solution_str, ground_truth):\n    return 0.5\n")
    ran = rlrun(*BENCH, "reward=python", "reward.path=mine.py")
    assert (ran.exit_code, ran.stderr) == (1, "")
    assert ran.stdout.splitlines()[-1].endswith("0.5 on average and empty ones 0.5, so nothing can be learnt")


def test_rows_that_a_run_would_refuse_are_named(home: Path) -> None:
    (home / "rows.jsonl").write_text(f'{{"question": 5}}\n{json.dumps(GOLD)}\n')
    ran = rlrun(*BENCH, "reward=gsm8k")
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("refused")]
    assert "rows.jsonl:1: question" in line
    (home / "rows.jsonl").write_text('{"question": 5}\n')
    ran = rlrun(*BENCH, "reward=gsm8k")
    assert ran.exit_code == 2 and "rows.jsonl:1: question" in ran.stderr
