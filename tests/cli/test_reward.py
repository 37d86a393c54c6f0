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


def test_json_says_it_all(home: Path) -> None:
    ran = rlrun(*BENCH, "reward=gsm8k_format", "--json")
    node = json.loads(ran.stdout)
    assert (ran.exit_code, node["ok"], node["rows"], node["deterministic"]) == (0, True, 5, True)
    assert {kind["name"]: kind["mean"] for kind in node["kinds"]}["gold"] == pytest.approx(1.2)


def test_a_plan_shows_what_a_reward_is_made_of(home: Path) -> None:
    ran = rlrun("plan", "algorithm=grpo", "model=tiny", "sampler.n=2", *BENCH[2:], "reward=gsm8k_format")
    assert ran.exit_code == 0, ran.stderr
    assert "reward gsm8k_format weights.gsm8k=1.0 weights.format=0.2" in " ".join(ran.stdout.split())


def test_rows_that_a_run_would_refuse_are_named(home: Path) -> None:
    (home / "rows.jsonl").write_text(f'{{"question": 5}}\n{json.dumps(GOLD)}\n')
    ran = rlrun(*BENCH, "reward=gsm8k")
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("refused")]
    assert "rows.jsonl:1: question" in line
    (home / "rows.jsonl").write_text('{"question": 5}\n')
    ran = rlrun(*BENCH, "reward=gsm8k")
    assert ran.exit_code == 2 and "rows.jsonl:1: question" in ran.stderr
