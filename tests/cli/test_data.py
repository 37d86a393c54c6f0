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


def test_prepare_names_what_nothing_reads() -> None:
    Path("rows.jsonl").write_text('{"prompt": "a", "response": "b", "lesson": "never lost"}\n' * 2)
    again = [rlrun("prepare", "rows.jsonl", "--for", "answers").stdout for _ in range(2)]
    for printed in again:  # the second time nothing is left to prepare
        assert "nothing reads lesson (2 of 2 rows" in " ".join(printed.split())
    assert node("prepare", "rows.jsonl", "--for", "answers")["unread"][0]["level"] == "WARN"


def test_prepare_takes_patterns_and_both_splits() -> None:
    made = node("prepare", "[sp]*.jsonl", "data.val_files=sums.jsonl", "data.on_bad_row=skip", "--for", "answers")
    assert made["rows"] == {"train": 20, "val": 20}
    assert made["refused"] == 20  # the pairs


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
    checked = ["check", "sums.jsonl", "model=tiny", "data.train_batch_size=8"]
    assert node(*checked)["folder"] is None and not Path("check-sums").exists(), "nothing there to look into"
    found = node(*checked, "--out=check-sums")
    assert found["passed"]
    assert found["rows"] == {"train": 18, "val": 2}
    assert found["prompt_tokens"]["over"] == 0
    quantiles = found["prompt_tokens"]["quantiles"]
    assert quantiles == dict.fromkeys(("p50", "p90", "p99", "max"), 5)  # half are "9+1?", half "10+1?"
    report = json.loads(Path("check-sums/report.json").read_text())
    assert report == {key: value for key, value in found.items() if key != "folder"}
    assert "✓ can be trained on" in rlrun("check", "sums.jsonl", "data.train_batch_size=8").stdout


def test_check_and_plan_agree(place: Path) -> None:
    """On rows that repeat others, and on a vocabulary that a plan makes of the rows."""
    rows = [{**row, "prompt": row["prompt"].replace("+", "é")} for row in [*SUMS, *SUMS[:3]]]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["algorithm=sft", "model=tiny", "data.val_share=0"]
    found = node("check", "sums.jsonl", *words)
    assert found["repeated"] == 3 and not any("no token" in note for note in found["notes"])
    planned = CliRunner().invoke(app, ["plan", "data=sums.jsonl", *words]).output
    assert "23 rows, 3 of them repeat an earlier one" in planned and "no token" not in planned


@pytest.mark.parametrize(
    ("words", "passed", "printed"),
    [
        ([], False, "15 prompts"),  # longer than the limit below
        (["data.truncation=filter"], True, "data.truncation=filter"),
        (["data.truncation=left"], True, "data.truncation=left"),
    ],
)
def test_check_judges_lengths_by_what_becomes_of_them(words: list[str], passed: bool, printed: str) -> None:
    Path("sums.jsonl").write_text(
        "".join(json.dumps({"prompt": "a" * (n + 1), "response": "b"}) + "\n" for n in range(20))
    )
    limits = ["model=tiny", "data.max_prompt_length=5", "data.train_batch_size=4"]
    assert printed in rlrun("check", "sums.jsonl", *limits, *words, code=0 if passed else 1).stdout
    found = [json.loads(line) for line in Path("check-sums/findings.jsonl").read_text().splitlines()]
    assert {one["where"] for one in found} == {f"sums.jsonl:{n}" for n in range(6, 21)}


def test_check_finds_what_hurts_training() -> None:
    with Path("sums.jsonl").open("a") as file:
        file.write(json.dumps(SUMS[3]) + "\n")  # said twice
    Path("val.jsonl").write_text(json.dumps({"prompt": "5+1?", "response": "6 of course"}) + "\n")
    found = node("check", "sums.jsonl", "data.val_files=val.jsonl")
    assert (found["repeated"], found["in_both"], found["refused"]) == (1, 1, 0)
    assert len(found["notes"]) == 2 and not found["wrong"], "a plan warns of them"
    assert found["first"] == [
        "sums.jsonl:21: repeats sums.jsonl:4",
        "val.jsonl:1: its prompt is also trained on: sums.jsonl:6",
    ]


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
        ([{"x": 1}], ["--for", "answers", "data.on_bad_row=skip"], "there are no usable rows"),
        ([SUMS[0]], ["data.train_batch_size=256"], "1 rows do not fill data.train_batch_size=256"),
        (  # a model without a template cannot write it
            [{"messages": [{"role": r, "content": "a"} for r in ("system", "user", "assistant")]}] * 3,
            ["model=tiny", "data.train_batch_size=2"],
            "3 rows cannot be written with the model's chat template",
        ),
        (
            [{"prompt": "a", "reward_model": {"ground_truth": "hello"}}] * 2,
            ["reward=gsm8k", "data.train_batch_size=2"],
            "2 rows can never be scored by the reward",
        ),
    ],
)
def test_check_refuses_what_training_would(rows: list[Any], words: list[str], printed: str) -> None:
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert printed in rlrun("check", "sums.jsonl", *words, code=1).stdout


def test_rows_are_read_by_the_keys_that_settings_name_and_what_nothing_reads_is_said(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"ask": "q", "reply": "a", "tone": "dry", "id": 3}\n')
    words = ["data.prompt_key=ask", "data.response_key=reply"]
    found = CliRunner().invoke(app, ["data", "check", str(tmp_path / "r.jsonl"), *words, "--json"])
    notes = json.loads(found.stdout)["notes"]
    assert found.exit_code == 0 and "nothing reads tone (1 of 1 rows" in notes[0] and notes[1].endswith("data: id")
