"""`rlrun advise`: what a file holds, which algorithm fits, and words that resolve."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.config.resolve import resolve
from launcher.preflight.plan import plan

PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
PROMPT = {"prompt": "a", "reward_model": {"ground_truth": "3"}}
ANSWER = {"prompt": "a", "response": "b"}
NULLS = {"prompt": "a", "chosen": None, "rejected": None, "self_play": True, "ground_truth": "b"}


def advised(path: Path, *words: str) -> dict[str, str]:
    ran = CliRunner().invoke(app, ["advise", str(path), "--model", "Qwen/Qwen3-0.6B", "--json", *words])
    assert ran.exit_code == 0, ran.output
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize(
    ("rows", "words", "algorithm"),
    [
        ([ANSWER], [], "sft"),
        ([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}], [], "sft"),
        ([PAIR], [], "dpo"),
        ([PAIR, {"prompt": "a", "self_play": True, "ground_truth": "b"}], [], "gspo_selfplay"),
        ([PAIR, NULLS], [], "gspo_selfplay"),  # as parquet has it
        ([PROMPT], ["--compute", "little"], "grpo"),
        ([PROMPT], ["--compute", "much"], "ppo"),
        ([{**ANSWER, "ground_truth": "b"}], ["--have", "prompts", "--compute", "little"], "grpo"),
    ],
)
def test_the_algorithm_fits_the_rows(tmp_path: Path, rows: list[object], words: list[str], algorithm: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = advised(path, *words)
    assert found["algorithm"] == algorithm
    command = shlex.split(found["command"])
    assert command[:2] == ["rlrun", "train"]
    assert resolve(command[2:])
    words = advised(path, *words, "--model", "tiny")["command"]  # the name of a choice
    assert "model=tiny" in words and "hardware=" not in words
    page = plan(shlex.split(words)[2:])
    assert page.ok, [result.line for result in page.results if result.level == "FAIL"]


def test_all_that_nobody_can_be_asked_for_is_named() -> None:
    ran = CliRunner().invoke(app, ["advise"])
    assert ran.exit_code == 2
    assert [line.split(":")[0] for line in ran.stderr.splitlines()] == ["✗ have", "✗ compute", "✗ model", "✗ files"]


def test_rows_that_are_nothing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"colour": "red"}\n')
    ran = CliRunner().invoke(app, ["advise", str(path), "--model", "m", "--compute", "much"])
    assert ran.exit_code == 2
    assert "rows.jsonl:1: is neither" in " ".join(ran.stderr.split())


def test_a_file_with_rows_for_a_model_gets_no_rule(tmp_path: Path) -> None:
    asked = {"prompt": "b", "reward_model": {"style": "model"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(PROMPT) + "\n" + json.dumps(asked) + "\n")
    assert "reward=python reward.path=reward.py" in advised(tmp_path / "rows.jsonl", "--compute", "little")["command"]
