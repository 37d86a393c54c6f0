"""A prepared dataset is there whole or not at all, is made once, and is named by all that went into it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.core.problems import Problems
from launcher.data import prepare as prepare_module
from launcher.data.files import Files
from launcher.data.prepare import VERSION, every, prepare, prepared, store
from launcher.spec.data import DataProgress, Message, Row, make_answer

GSM8K = {"question": "1+1?", "answer": "1+1=2\n#### 2"}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    return tmp_path / "store"


def rows(path: Path, count: int = 3, **more: Any) -> Files:
    path.write_text("".join(json.dumps({"question": f"{n}?", "answer": f"#### {n}"}) + "\n" for n in range(count)))
    return Files(train_files=(str(path),), format="gsm8k", **more)


def nothing(_: DataProgress) -> None:
    pass


def prepared_rows(folder: Path) -> Files:
    return Files(train_files=(str(folder / "train.parquet"),))


def test_it_is_made_once_and_read_like_any_other_file(tmp_path: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    folder = prepare(files, "prompts", "sums", nothing)
    made = prepared(folder)
    assert made
    assert (made.rows, made.refused, folder.parent) == ({"train": 3}, 0, store())
    before = (folder / "train.parquet").stat().st_mtime_ns
    assert prepare(files, "prompts", "sums", nothing) == folder
    assert (folder / "train.parquet").stat().st_mtime_ns == before
    assert [path for path, _ in every()] == [folder]
    found = prepared_rows(folder).read("train", "prompts")
    assert [row.ground_truth for row in found if isinstance(row, Row)] == ["0", "1", "2"]


def test_whatever_goes_in_is_part_of_the_name_and_names_of_files_are_not(tmp_path: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    same = rows(tmp_path / "b.jsonl")
    others = [
        rows(tmp_path / "c.jsonl", 4),
        replace(files, data_source="mine"),
        replace(files, instruction=""),
        replace(files, train_files=files.train_files * 2),
        replace(files, val_files=files.train_files),
    ]
    before = prepare(files, "prompts", "sums", nothing)
    assert prepare(same, "prompts", "sums", nothing) == before
    assert len({before, *(prepare(other, "prompts", "sums", nothing) for other in others)}) == 6
    assert prepare(files, "answers", "sums", nothing) != before


def test_bad_rows_stop_it_unless_they_are_skipped_and_are_kept(tmp_path: Path, root: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    Path(files.train_files[0]).write_text(json.dumps(GSM8K) + "\n{\n")
    with pytest.raises(Problems) as caught:
        prepare(files, "prompts", "sums", nothing)
    assert list(every()) == []
    [kept] = root.glob("*-refused.jsonl")
    assert caught.value.lines[0].startswith(f"{tmp_path}/a.jsonl:2: invalid JSON")
    assert caught.value.lines[1:] == [f"data.on_bad_row: 1 of 2 rows are bad, kept in {kept}; use skip"]
    folder = prepare(replace(files, on_bad_row="skip"), "prompts", "sums", nothing)
    made = prepared(folder)
    assert made and (made.rows, made.refused) == ({"train": 1}, 1)
    for path in (kept, folder / "refused.jsonl"):
        assert json.loads(path.read_text())["where"] == f"{tmp_path}/a.jsonl:2"
    with pytest.raises(Problems, match="1 of 2 rows are bad"):  # though its rows are prepared
        prepare(files, "prompts", "sums", nothing)


def test_a_file_that_comes_while_others_are_hashed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(tmp_path / "a.jsonl")
    hashed = prepare_module.sha256

    def and_another(path: Path) -> str:
        rows(tmp_path / "b.jsonl")
        return hashed(path)

    monkeypatch.setattr(prepare_module, "sha256", and_another)
    files = Files(train_files=(str(tmp_path / "*.jsonl"),), format="gsm8k")
    made = prepared(prepare(files, "prompts", "sums", nothing))
    assert made and (made.rows, list(made.sources)) == ({"train": 3}, [str(tmp_path / "a.jsonl")])


def test_what_is_damaged_or_of_another_version_is_made_again(tmp_path: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    folder = prepare(files, "prompts", "sums", nothing)

    def forget_version() -> None:
        made = json.loads((folder / "manifest.json").read_text())
        assert made.pop("version") == VERSION
        (folder / "manifest.json").write_text(json.dumps(made))  # as the first version wrote it

    for harm in ((folder / "train.parquet").unlink, (folder / "manifest.json").unlink, forget_version):
        harm()
        assert prepared(folder) is None and not list(every())
        assert prepare(files, "prompts", "sums", nothing) == folder
        assert pq.read_table(folder / "train.parquet").num_rows == 3


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    files = rows(tmp_path / "a.jsonl")
    mine = tmp_path / "mine"
    for _ in range(2):
        assert prepare(files, "prompts", "sums", nothing, into=mine) == mine
    with pytest.raises(Problems, match="is there already, and holds something else"):
        prepare(rows(tmp_path / "b.jsonl", 5), "prompts", "sums", nothing, into=mine)
    assert pq.read_table(mine / "train.parquet").num_rows == 3


def test_rows_that_hold_nothing_of_the_kind_are_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    with pytest.raises(Problems, match="no row can be prepared for pairs"):
        prepare(Files(train_files=(str(path),), on_bad_row="skip"), "pairs", "sums", nothing)


def test_it_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    reports = list[DataProgress]()
    files = rows(tmp_path / "a.jsonl", 100_000)
    prepare(files, "prompts", "sums", reports.append)
    size = Path(files.train_files[0]).stat().st_size
    assert [at.done_bytes for at in reports] == sorted(at.done_bytes for at in reports)
    assert reports[-1].done_bytes == reports[-1].bytes == size
    assert reports[-1].rows == 100_000


def started(source: Path, root: Path) -> subprocess.Popen[bytes]:
    words = ["data", "prepare", str(source), "data.format=gsm8k", "--for", "prompts"]
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words], env={**os.environ, "RLRUN_DATA": str(root)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_kill_leaves_nothing_half_done(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "a.jsonl"
    files = rows(source, 300_000)
    process = started(source, root)
    while not list(root.glob(".unfinished-*/train*.parquet")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(every()) == []
    assert len(list(root.glob(".unfinished-*"))) == 1
    small = rows(tmp_path / "b.jsonl", 3)
    prepare(small, "prompts", "sums", nothing)
    assert list(root.glob(".unfinished-*")) == []  # the next preparation swept it away
    assert files.problems() == []


def test_two_at_once_make_one(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "a.jsonl"
    rows(source, 2_000)
    both = [started(source, root) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    [(folder, made)] = list(every())
    assert made.rows == {"train": 2_000}
    assert pq.read_table(folder / "train.parquet").num_rows == 2_000
    assert list(root.glob(".unfinished-*")) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "a.jsonl"
    rows(source, 20_000)
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "from launcher.cli.main import app; sys.argv = ['rlrun', *sys.argv[1:]]; app()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", limited, "data", "prepare", str(source), "data.format=gsm8k", "--for", "prompts"],
        env={**os.environ, "RLRUN_DATA": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "file too large" in ran.stderr.lower()
    assert "Traceback" not in ran.stderr
    assert list(root.iterdir()) == []


def test_what_a_chat_template_reads_survives(tmp_path: Path) -> None:
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
        file = tmp_path / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        files = Files(train_files=(str(file),))
        made = prepare(files, kind, "chats", nothing)  # type: ignore[arg-type]
        before, after = (
            [replace(row, where="", extra_info={}) for row in each.read("train", kind) if isinstance(row, Row)]  # type: ignore[arg-type]
            for each in (files, prepared_rows(made))
        )
        turns = (Message("user", "1+1?"),)
        assert after == [replace(row, prompt=turns) if isinstance(row.prompt, str) else row for row in before]
    only = tmp_path / "plain.jsonl"
    only.write_text(json.dumps(plain) + "\n")
    made = prepare(Files(train_files=(str(only),)), "answers", "plain", nothing)
    assert "template_fields" not in pq.read_schema(made / "train.parquet").names


@pytest.mark.parametrize("truths", [
    [1, 2, 30], [0.5, 2.0], [True, False], [["a"], ["b", "c"]], [{"target": 1, "numbers": [1, 2]}] * 2, ["1", "b"],
])  # fmt: skip
def test_a_ground_truth_keeps_its_type(tmp_path: Path, truths: list[Any]) -> None:
    file = tmp_path / "truths.jsonl"
    lines = [{"prompt": f"{place}?", "ground_truth": truth} for place, truth in enumerate(truths)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = Files(train_files=(str(file),))
    again = prepared_rows(prepare(files, "prompts", "truths", nothing))
    found = [make_answer(row).node["ground_truth"] for row in again.read("train", "prompts") if isinstance(row, Row)]
    assert (found, [*map(type, found)]) == (truths, [*map(type, truths)])


def test_ground_truths_of_two_types_do_not_fit_into_one_column(tmp_path: Path) -> None:
    file = tmp_path / "truths.jsonl"
    file.write_text("".join(json.dumps({"prompt": "1?", "ground_truth": truth}) + "\n" for truth in ([1], "b")))
    with pytest.raises(Problems, match="has other types than in the rows before"):
        prepare(Files(train_files=(str(file),)), "prompts", "truths", nothing)


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(("numbers", "refused"), [([2**60, 0.5], 2), ([0.5, 2**60], 1)])
def test_a_number_that_the_type_of_others_would_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[float], refused: int, chunk: int
) -> None:
    """The row alone, or where it was written before the others came, the file."""
    monkeypatch.setattr("launcher.data.convert._CHUNK_ROWS", chunk)
    file = tmp_path / "ids.jsonl"
    lines = [{"prompt": "1?", "answer": "1", "extra_info": {"id": number}} for number in numbers]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = Files(train_files=(str(file),), on_bad_row="skip")
    if refused == 2:
        with pytest.raises(Problems, match="has other types than in the rows before"):
            prepare(files, "prompts", "ids", nothing)
    else:
        made = prepared(prepare(files, "prompts", "ids", nothing))
        assert made and (made.rows, made.refused) == ({"train": 1}, refused)


def test_fields_that_parquet_gives_all_turns_are_missing_where_they_are_null(tmp_path: Path) -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    other = {"function": {"name": "sub", "arguments": {"b": 1}}}
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "", "tool_calls": [call, other]}]
    pq.write_table(pa.Table.from_pylist([{"messages": turns}]), tmp_path / "chats.parquet")
    (row,) = Files(train_files=(str(tmp_path / "chats.parquet"),)).read("train", "answers")
    assert isinstance(row, Row) and isinstance(row.prompt, tuple)
    assert [turn.extra for turn in row.prompt] == [{}, {"tool_calls": [call, other]}]
