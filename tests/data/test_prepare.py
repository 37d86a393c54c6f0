"""A prepared dataset is there whole or not at all."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.data.prepare import prepare
from launcher.data.refused import RefusedLog
from launcher.spec.algorithm import Kind
from launcher.spec.data import DataProgress, Message, Row, make_answer
from launcher.tools.data_check import check
from launcher.tools.datasets import Chosen

GSM8K = {"question": "1+1?", "answer": "1+1=2\n#### 2"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def files_of(path: Path, given: Iterable[Any], **more: Any) -> Files:
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    return Files(train_files=(str(path),), **more)


def rows(path: Path, count: int = 3) -> Files:
    return files_of(path, ({"question": f"{n}?", "answer": f"#### {n}"} for n in range(count)), format="gsm8k")


def nothing(_: DataProgress) -> None:
    pass


def prepared_rows(folder: Path) -> Files:
    return Files(train_files=(str(folder / "train.parquet"),))


def test_prepared_rows_take_the_place_of_others_and_nothing_else_and_tell_how_far_they_are(
    tmp_path: Path, out: Path
) -> None:
    files = rows(tmp_path / "a.jsonl")
    prepare(replace(files, val_files=files.train_files), "prompts", out, nothing)
    reports = list[DataProgress]()
    prepare(rows(file := tmp_path / "b.jsonl", 100_000), "prompts", out, reports.append)
    assert pq.read_table(out / "train.parquet").num_rows == 100_000 and not (out / "val.parquet").exists()
    done = [at.done_bytes for at in reports]
    assert len(done) > 1 and done == sorted(done) and done[-1] == reports[-1].bytes == file.stat().st_size
    assert reports[-1].rows == 100_000
    (tmp_path / "mine").mkdir()
    for content in ("", "{}"):
        (tmp_path / "mine" / "manifest.json").write_text(content)
        with pytest.raises(Problems, match="is there already, and holds something else"):
            prepare(files, "prompts", tmp_path / "mine", nothing)
        assert (tmp_path / "mine" / "manifest.json").read_text() == content
    (tmp_path / "link").symlink_to(out)
    (out / "notes.md").write_text("mine")
    for folder in (out, tmp_path / "link"):
        with pytest.raises(Problems, match="is there already, and holds something else"):
            prepare(files, "prompts", folder, nothing)
    assert pq.read_table(out / "train.parquet").num_rows == 100_000


def test_bad_rows_stop_it_unless_they_are_skipped_and_are_kept(tmp_path: Path, out: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    Path(files.train_files[0]).write_text(json.dumps(GSM8K) + "\n{\n")
    with pytest.raises(Problems) as caught:
        prepare(files, "prompts", out, nothing)
    kept = tmp_path / "out-refused.jsonl"
    assert not out.exists()
    assert caught.value.lines[0].startswith(f"{tmp_path}/a.jsonl:2: invalid JSON")
    assert caught.value.lines[1:] == [f"data.on_bad_row: 1 of 2 rows are bad, kept in {kept}; use skip"]
    made = prepare(replace(files, on_bad_row="skip"), "prompts", out, nothing)
    assert (made.rows, made.refused) == ({"train": 1}, 1)
    for path in (kept, out / "refused.jsonl"):
        assert json.loads(path.read_text())["where"] == f"{tmp_path}/a.jsonl:2"
    with pytest.raises(Problems, match="no row can be prepared for pairs"):
        prepare(replace(files, on_bad_row="skip"), "pairs", tmp_path / "pairs", nothing)


def started(source: Path, out: Path, limit: str = "") -> subprocess.Popen[str]:
    words = ["data", "prepare", str(source), "data.format=gsm8k", "--for", "prompts", "--out", str(out)]
    code = f"{limit}from launcher.cli.main import app; import sys; sys.argv = ['rlrun', *sys.argv[1:]]; app()"
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)  # fmt: skip


def test_a_kill_leaves_nothing_half_done(tmp_path: Path, out: Path) -> None:
    rows(source := tmp_path / "a.jsonl", 300_000)
    process = started(source, out)
    while not list(tmp_path.glob(".unfinished-*/new/train*.parquet")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists() and len(list(tmp_path.glob(".unfinished-*"))) == 1
    prepare(rows(tmp_path / "b.jsonl", 3), "prompts", tmp_path / "other", nothing)
    assert list(tmp_path.glob(".unfinished-*")) == []  # the next preparation swept it away


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, out: Path) -> None:
    rows(source := tmp_path / "a.jsonl", 20_000)
    process = started(source, out, "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
                                   "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); ")  # fmt: skip
    _, printed = process.communicate()
    assert process.returncode == 2
    assert "file too large" in printed.lower() and "Traceback" not in printed
    assert list(tmp_path.iterdir()) == [source]


def test_what_a_chat_template_reads_survives(tmp_path: Path, out: Path) -> None:
    """In parquet a turn has role and content alone, so the rest is kept beside the turns."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    chat = {"tools": [{"type": "function", "function": {"name": "add"}}], "messages": [
        {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
        {"role": "assistant", "content": "2", "reasoning_content": "Added."}]}  # fmt: skip
    plain = {"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]}
    pair = {"prompt": "1+1?", "chosen": [{"role": "assistant", "content": "2", "reasoning_content": "Added."}],
            "rejected": "3"}  # fmt: skip
    for kind, lines in (("answers", [plain, chat]), ("pairs", [pair])):
        files = files_of(tmp_path / f"{kind}.jsonl", lines)
        prepare(files, kind, out, nothing)  # type: ignore[arg-type]
        before, after = (
            [replace(row, where="", extra_info={}) for row in each.read("train", kind) if isinstance(row, Row)]  # type: ignore[arg-type]
            for each in (files, prepared_rows(out))
        )
        turns = (Message("user", "1+1?"),)
        assert after == [replace(row, prompt=turns) if isinstance(row.prompt, str) else row for row in before]
    prepare(files_of(tmp_path / "plain.jsonl", [plain]), "answers", out, nothing)
    assert "template_fields" not in pq.read_schema(out / "train.parquet").names


@pytest.mark.parametrize("truths", [
    [1, 2, 30], [0.5, 2.0], [True, False], [["a"], ["b", "c"]], [{"target": 1, "numbers": [1, 2]}] * 2, ["1", "b"],
])  # fmt: skip
def test_a_ground_truth_keeps_its_type(tmp_path: Path, out: Path, truths: list[Any]) -> None:
    lines = [{"prompt": f"{place}?", "ground_truth": truth} for place, truth in enumerate(truths)]
    prepare(files_of(tmp_path / "truths.jsonl", lines), "prompts", out, nothing)
    found = [
        make_answer(row).node["ground_truth"]
        for row in prepared_rows(out).read("train", "prompts")
        if isinstance(row, Row)
    ]
    assert (found, [*map(type, found)]) == (truths, [*map(type, truths)])


def test_fields_that_parquet_gives_all_turns_are_missing_where_they_are_null(tmp_path: Path) -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    other = {"function": {"name": "sub", "arguments": {"b": 1}}}
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "", "tool_calls": [call, other]}]
    pq.write_table(pa.Table.from_pylist([{"messages": turns}]), tmp_path / "chats.parquet")
    (row,) = Files(train_files=(str(tmp_path / "chats.parquet"),)).read("train", "answers")
    assert isinstance(row, Row) and isinstance(row.prompt, tuple)
    assert [turn.extra for turn in row.prompt] == [{}, {"tool_calls": [call, other]}]


# ---- bad rows, by a preparation and by a check


GOOD = '{"question": "What is %d and one?", "answer": "Add one.\\n#### %d"}'
BAD = [  # what else a line may hold is in test_reader.py
    b'{"question": "a"',
    b'{"question": 7, "answer": "#### 1"}',
    b'{"answer": "#### 1"}',
    b'{"question": null, "answer": "#### 1"}',
    '{"question": "\u3000", "answer": "#### 1"}'.encode(),
    b'{"question": "caf\xe9", "answer": "#### 1"}',
    b'{"question": "a\\ud83d", "answer": "#### 1"}',
    b'{"question": "a", "answer": "seven"}',
    b'{"question": "' + b"x" * 4_300_000 + b'", "answer": "#### 1"}',
]


def test_each_bad_row_is_named_and_in_is_out_plus_refused(tmp_path: Path) -> None:
    """Each stands behind two good ones."""
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
