"""`rlrun data`: what a person types, what is said, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from launcher.cli.main import app
from launcher.preflight.checks import context

SUMS = [{"prompt": f"{n}+1?", "response": str(n + 1)} for n in range(20)]
GSM8K = [{"question": f"{n}+1?", "answer": f"Add.\n#### {n + 1}"} for n in range(20)]
PAIRS = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(20)]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    for name, rows in (("sums", SUMS), ("gsm8k", GSM8K), ("pairs", PAIRS)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def rlrun(*words: str, code: int = 0) -> Result:
    ran = CliRunner().invoke(app, ["data", *words])
    assert ran.exit_code == code, ran.output
    assert not isinstance(ran.exception, Exception) or isinstance(ran.exception, SystemExit)
    return ran


def node(*words: str, code: int = 0) -> Any:
    return json.loads(rlrun(*words, "--json", code=code).stdout)


@pytest.mark.parametrize(
    ("words", "kind", "columns"),
    [
        (["data=sums.jsonl"], "answers", ["data_source", "messages", "ability", "extra_info"]),
        (["pairs.jsonl"], "pairs", ["data_source", "prompt", "chosen", "rejected", "ability", "extra_info"]),
        (["gsm8k.jsonl", "data.format=gsm8k", "--for", "prompts"], "prompts",
         ["data_source", "prompt", "ability", "reward_model", "extra_info"]),
        (["gsm8k.jsonl", "algorithm=grpo"], "prompts",
         ["data_source", "prompt", "ability", "reward_model", "extra_info"]),
    ],
)  # fmt: skip
def test_prepare_writes_what_the_rows_are(words: list[str], kind: str, columns: list[str]) -> None:
    made = node("prepare", *words)
    assert (made["kind"], made["rows"]) == (kind, {"train": 20})
    assert pq.ParquetFile(Path(made["folder"]) / "train.parquet").schema_arrow.names == columns


def test_bad_rows_are_named_and_end_with_2() -> None:
    Path("sums.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", "respnse": "b"}\n')
    ran = rlrun("prepare", "sums.jsonl", code=2)
    assert "✗ sums.jsonl:2: response is missing; it has prompt, respnse; did you mean response?" in ran.stderr
    assert "1 of 2 rows are bad" in ran.stderr
    assert "1 refused" in rlrun("prepare", "sums.jsonl", "data.on_bad_row=skip").stdout


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["prepare", "gsm9k"], "did you mean gsm8k?"),
        (["prepare", "nowhere.jsonl"], "'nowhere.jsonl': not a file, a hub id (owner/name) or a choice of data"),
        (["prepare", "../etc/passwd"], "not a file, a hub id"),
        (["prepare", "owner/name"], "--for: what the rows of owner/name are is unknown"),
        (["prepare", "reverse"], "is generated"),
        (["prepare", "sums.jsonl", "data.fromat=auto"], "did you mean data.format=auto?"),
        (["check", "sums.jsonl", "data.truncation=middle"], "data.truncation"),
        (["show", "gsm9k"], "did you mean gsm8k?"),
        (["show", "sums.jsonl", "algorithm=sft", "--for", "pairs"], "use one of them"),
    ],
)
def test_what_is_not_understood_is_said(words: list[str], printed: str) -> None:
    assert printed in rlrun(*words, code=2).stderr


def test_check_passes_good_rows() -> None:
    found = node("check", "sums.jsonl", "model=tiny", "data.train_batch_size=8")
    assert found["passed"] and found["log"] is None and not Path("check-sums").exists()
    assert found["rows"] == {"train": 18, "val": 2}
    lengths = {result["subject"]: result["message"] for result in found["results"]}
    assert lengths["lengths"] == "all fit, as the longest prompt has 5 bytes"
    assert "✓ can be trained on" in rlrun("check", "sums.jsonl", "data.train_batch_size=8").stdout


def test_check_and_plan_agree(place: Path) -> None:
    """On rows that repeat others, and on a vocabulary that a plan makes of the rows."""
    rows = [{**row, "prompt": row["prompt"].replace("+", "é")} for row in [*SUMS, *SUMS[:3]]]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["algorithm=sft", "model=tiny", "data.val_share=0"]
    planned = CliRunner().invoke(app, ["plan", "data=sums.jsonl", *words]).output
    for output in (rlrun("check", "sums.jsonl", *words).stdout, planned):
        assert "23 rows, 3 of them repeat an earlier one" in output and "<unk>" not in output


def test_check_reads_every_row_and_keeps_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_ROWS", 10)
    with Path("sums.jsonl").open("a") as file:
        file.write('{"prompt": "a"}\n')
    found = node("check", "sums.jsonl", "--for=answers", code=1)
    assert (found["refused"], found["log"]) == (1, "check-sums/refused.jsonl")
    assert json.loads(Path(found["log"]).read_text())["where"] == "sums.jsonl:21"
    Path("sums.jsonl").write_text("".join(Path("sums.jsonl").read_text().splitlines(keepends=True)[:20]))
    assert node("check", "sums.jsonl", "--for=answers")["log"] is None and not Path(found["log"]).exists()


def test_show_prints_rows_as_a_run_reads_them() -> None:
    printed = rlrun("show", "gsm8k.jsonl", "data.format=gsm8k", "--for", "prompts", "-n", "1").stdout
    assert 'output the final answer after "####".' in printed
    assert "ground_truth: 1\n" in printed
    Path("sums.jsonl").write_text("{\n")
    assert "✗ invalid JSON" in rlrun("show", "sums.jsonl", "--for", "answers").stdout


def test_a_terminal_escape_in_a_row_is_shown_and_not_obeyed() -> None:
    Path("sums.jsonl").write_text(json.dumps({"prompt": "a\x1b[31m", "response": "b"}) + "\n")
    assert "a\\x1b[31m" in rlrun("show", "sums.jsonl").stdout


@pytest.mark.parametrize(
    ("rows", "words", "printed"),
    [
        ([{"x": 1}], ["--for", "answers", "data.on_bad_row=skip"], "has no usable rows"),
        ([SUMS[0]], ["data.train_batch_size=256"], "got 256, and the data has 1 rows"),
    ],
)
def test_check_refuses_what_training_would(rows: list[Any], words: list[str], printed: str) -> None:
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert printed in rlrun("check", "sums.jsonl", *words, code=1).stdout


def test_rows_are_read_by_the_keys_that_settings_name_and_what_nothing_reads_is_said(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"ask": "q", "reply": "a", "tone": "dry", "id": 3}\n')
    words = ["data.prompt_key=ask", "data.response_key=reply"]
    found = CliRunner().invoke(app, ["data", "check", str(tmp_path / "r.jsonl"), *words, "--json"])
    lines = [f"{each['subject']}: {each['message']}" for each in json.loads(found.stdout)["results"]]
    assert found.exit_code == 0 and any("nothing reads tone (1 of 1 rows" in line for line in lines)
    assert any(line.endswith("data: id") for line in lines)
