"""Bad rows of every kind among good ones: each is named by its row, and none is lost on the way."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.data.prepare import prepare
from launcher.data.refused import RefusedLog
from launcher.spec.algorithm import Kind
from launcher.tools.data_check import check
from launcher.tools.datasets import Chosen

GOOD = '{"question": "What is %d and one?", "answer": "Add one.\\n#### %d"}'
BAD = [
    b'{"question": "a"',
    b'{"question": "a", "answer": "#### 1"} {"question": "b", "answer": "#### 2"}',
    b"null",
    b'{"question": 7, "answer": "#### 1"}',
    b'{"answer": "#### 1"}',
    b'{"question": null, "answer": "#### 1"}',
    '{"question": "\u3000", "answer": "#### 1"}'.encode(),
    b'{"question": "a\0b", "answer": "#### 1"}',
    b'{"question": "a\\ud83d", "answer": "#### 1"}',
    b'{"question": "caf\xe9", "answer": "#### 1"}',
    b'{"question": "a", "answer": "#### 1", "question": "b"}',
    b'{"question": "a", "answer": "seven"}',
    b'{"question": "a", "answer": "#### 1", "n": 1e999}',
    b'{"question": "a", "answer": "#### 1", "n": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"question": "' + b"x" * 4_300_000 + b'", "answer": "#### 1"}',
]


def test_each_bad_row_is_named_and_in_is_out_plus_refused(tmp_path: Path) -> None:
    """By a preparation and by a check. Each stands behind two good ones."""
    lines = [(GOOD % (line, line)).encode() for line in range(1, 3 * len(BAD) + 1)]
    lines[2::3] = BAD
    (file := tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    files = Files(train_files=(str(file),), format="gsm8k", on_bad_row="skip", train_batch_size=8)
    made = prepare(files, "prompts", folder := tmp_path / "prepared", lambda _: None)
    kept = [json.loads(line) for line in (folder / "refused.jsonl").read_text().splitlines()]
    assert all(row["reason"] for row in kept)
    found = {int(row["where"].rpartition(":")[2]): row["raw"].encode("utf-8", "surrogateescape") for row in kept}
    bad = {3 * (place + 1): line for place, line in enumerate(BAD)}
    assert len(kept) == len(bad) and found == {**bad, 3 * len(BAD): b""}  # the longest stays in its file
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
    truths = [int(row["reward_model"]["ground_truth"]) for row in rows]
    assert truths == [line for line in range(1, 3 * len(BAD) + 1) if line % 3]
    assert (made.rows, made.refused) == ({"train": len(truths)}, len(bad))

    file.write_bytes(file.read_bytes() + (GOOD % (1, 2) + "\n").encode() * 2)  # repeated, and in both splits
    (tmp_path / "val.jsonl").write_text(GOOD % (5_000, 1) + "\n" + GOOD % (1, 2) + "\n")
    files = replace(files, val_files=(str(tmp_path / "val.jsonl"),), on_bad_row="error")
    report = check(chosen(files, "prompts"), (), tmp_path / "out", lambda _: None)
    assert (report.refused, report.rows) == (len(bad), {"train": 2 * len(bad) + 2, "val": 2})
    lines = [result.line for result in report.results]
    assert any("1 of them repeat an earlier one" in line for line in lines) and not report.passed
    assert any("(val.jsonl:2 is rows.jsonl:1)" in line.replace(f"{tmp_path}/", "") for line in lines)
    assert report.log and len(report.log.read_text().splitlines()) == len(bad)


def chosen(files: Files, kind: Kind) -> Chosen:
    algorithm = {"prompts": "grpo", "answers": "sft"}[kind]
    run = resolve([f"algorithm={algorithm}", "model=tiny", "data=files", "data.train_files=none", "reward=exact"])
    return Chosen("rows", replace(run, data=files), has_model=False)


ASKED = b"prompt,response\n"


@pytest.mark.parametrize(
    ("name", "content", "place", "reason"),
    [
        ("x.csv", ASKED + b'"p,r\n' + b"p,r\n" * 9, ":2", "a quote that begins in this row is never closed"),
        ("x.csv.gz", gzip.compress(ASKED + b"p,r\n" * 9, mtime=0)[:-9], ":", "the file breaks off behind this"),
        ("x.parquet", b"PAR1", "", "the parquet file is cut short or damaged"),
        ("none-*.jsonl", None, "", "the pattern matches no file"),
    ],
)
def test_a_fault_that_ends_reading_is_never_skipped(
    tmp_path: Path, name: str, content: bytes | None, place: str, reason: str
) -> None:
    good, path = tmp_path / "a.csv", tmp_path / name
    good.write_bytes(ASKED + b"1?,1\n\n3?\n")
    if content is not None:
        path.write_bytes(content)
    files = Files(train_files=(str(good), str(path)), on_bad_row="skip", train_batch_size=1)
    log = RefusedLog(None)
    list(log.sift(files.read("train", "answers")))
    [problem] = log.problems("skip")
    assert problem.where.startswith(f"{path}{place}") and problem.got.startswith(reason)
    assert f"{path}" in log.problems("error")[0].where  # before the rows that could be skipped
    report = check(chosen(files, "answers"), (), tmp_path / "out", lambda _: None)
    assert not report.passed
    if files.problems():
        return
    assert str(problem) in [result.line for result in report.results if result.level == "FAIL"]
    assert any(re.match(r"1 of \d+ rows are bad and skipped", result.message) for result in report.results)
    with pytest.raises(Problems) as refused:
        prepare(files, "answers", tmp_path / "prepared", lambda _: None)
    assert list(map(str, refused.value.problems)) == [str(problem)]
