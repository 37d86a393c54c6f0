"""The dataset of files, and the file of what it refused."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.core.problems import Problems
from launcher.data.files import Files, source_of
from launcher.data.quality import count_repeats
from launcher.data.refused import SHOWN, RefusedLog
from launcher.data.rows import RawRow
from launcher.spec.data import SPLITS, Message, RefusedRow, Row, asked

ENDED = ".jsonl, .json, .ndjson, .csv, .tsv, .jsonl.gz, .json.gz, .ndjson.gz, .csv.gz, .tsv.gz or .parquet"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, prompt in (("b", "2"), ("a", "1"), ("val", "3")):
        Path(f"data/{name}.jsonl").write_text(json.dumps({"prompt": prompt, "response": "r"}) + "\n")
    return tmp_path


def files_of(name: str, rows: list[Any], **more: Any) -> Files:
    Path(name).write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return Files(train_files=(name,), **more)


def read(*train: str, **more: Any) -> list[tuple[str, str]]:
    found = Files(train_files=train, **more).read("train", "answers")
    return [(row.where, row.reason if isinstance(row, RefusedRow) else str(row.prompt)) for row in found]


def test_files_are_read_in_the_order_given_and_patterns_sorted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert read("data/b.jsonl", "data/a.jsonl") == [("data/b.jsonl:1", "2"), ("data/a.jsonl:1", "1")]
    assert read("data/?.jsonl") == [("data/a.jsonl:1", "1"), ("data/b.jsonl:1", "2")]
    assert read("**/[ab].jsonl") == [("data/a.jsonl:1", "1"), ("data/b.jsonl:1", "2")]
    Path("data/[ab].jsonl").write_text('{"prompt": "bracket", "response": "r"}')
    assert read("data/[ab].jsonl") == [("data/[ab].jsonl:1", "bracket")]  # a name that exists is no pattern
    monkeypatch.setenv("HOME", str(folder))
    assert read("~/data/a.jsonl") == [(f"{folder}/data/a.jsonl:1", "1")]


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"train_files": ("data/a.jsonl", "data/*.jsonl"), "val_files": ("data/val.jsonl",)}, []),
        ({}, ["data.train_files: none is given; use data.train_files=PATH, of a JSONL, JSON, CSV or parquet file"]),
        (
            {"train_files": ("data/a.jsonl",), "val_files": ("data/vla.jsonl",)},
            ["data.val_files: data/vla.jsonl is not there; did you mean data.val_files=data/val.jsonl?"],
        ),
        ({"train_files": ("empty/a.jsonl",)}, ["data.train_files: empty/a.jsonl is not there; "
                                               "its folder has no JSONL, JSON, CSV or parquet file"]),
        ({"train_files": ("dta/a.jsonl",)}, ["data.train_files: dta/a.jsonl is not there; neither is the folder dta"]),
        ({"train_files": ("data/tr*",)}, ["data.train_files: data/tr* matches no file; "
                                          "its folder has a.jsonl, b.jsonl, val.jsonl"]),
        ({"train_files": ("pipes/*.jsonl",)}, ["data.train_files: pipes/c.jsonl is a pipe or a device; "
                                               "use files, which can be read twice"]),
        ({"train_files": ("data",)}, ["data.train_files: data is a folder; use 'data.train_files=data/*.jsonl'"]),
        ({"train_files": ("x.txt",)}, ["data.train_files: the ending of 'x.txt' is not known; expected "
                                       f"{ENDED}"]),
        ({"train_files": ("data/a.jsonl",), "format": "gsm8k", "response_key": "answer"},
         ["data.response_key: answer was given, and rows of the format gsm8k have keys of their own;"
          " use data.format=auto, or leave out data.response_key"]),
    ],
)  # fmt: skip
def test_problems(values: dict[str, Any], lines: list[str]) -> None:
    Path("x.txt").touch()
    Path("empty").mkdir()
    Path("pipes").mkdir()
    os.mkfifo("pipes/c.jsonl")
    assert list(map(str, Files(**values).problems())) == lines
    Path("train.csv").touch()
    given_none = "data.train_files: none is given; use data.train_files=train.csv"  # one that is here
    assert list(map(str, Files().problems())) == [given_none]


@pytest.mark.parametrize(("content", "expected"), [
    (b"PK\x03\x04", "is a ZIP archive or a workbook of Excel; save its rows as CSV"),
    (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS; run git lfs pull in its repository"),
    (b"<!DOCTYPE html>", "is a web page; download the file itself, not the page that shows it"),
    ('{"a": 1}'.encode("utf-16"), "is UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8 x.jsonl > x.utf8.jsonl"),
    ('{"a": "\u4f60"}'.encode(), ""), (b"\0\0\0\0\0", ""),
])  # fmt: skip
def test_files_that_hold_something_else(content: bytes, expected: str) -> None:
    Path("x.jsonl").write_bytes(content)
    found = list(map(str, Files(train_files=("x.jsonl",)).problems()))
    assert found == ([f"data.train_files: x.jsonl {expected}"] if expected else [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_a_problem() -> None:
    Path("data/a.jsonl").chmod(0)
    (line,) = map(str, Files(train_files=("data/a.jsonl",)).problems())
    assert "may not be read" in line


def test_the_fingerprint_follows_what_the_rows_come_from() -> None:
    first = Files(train_files=("data/a.jsonl", "data/b.jsonl")).fingerprint()
    Path("data/a.jsonl").rename("data/moved.jsonl")
    same = ("data/moved.jsonl", "data/b.jsonl")
    assert Files(train_files=same, shuffle=False).fingerprint() == first  # neither name nor order of drawing counts
    others = [
        Files(train_files=tuple(reversed(same))),  # other order
        Files(train_files=same[:1], val_files=same[1:]),  # other split
        Files(train_files=same, prompt_key="prompt"),
        Files(train_files=same, response_key="prompt"),
    ]
    Path("data/c.jsonl").write_text(Path("data/moved.jsonl").read_text() + Path("data/b.jsonl").read_text())
    others.append(Files(train_files=("data/c.jsonl",)))
    assert len({first, *(other.fingerprint() for other in others)}) == 6
    with pytest.raises(Problems, match=r"data\.val_files: data cannot be read"):
        Files(train_files=same, val_files=("data",)).fingerprint()


# ---- the file of what was refused


def gone_through(dataset: Files, path: Path) -> RefusedLog:
    with RefusedLog(path) as log:
        for _ in log.sift(dataset.read("train", "answers")):
            pass
    return log


def test_refused_rows_are_counted_and_kept_whole_in_place_of_an_earlier_reading() -> None:
    Path("refused.jsonl").write_text("old\n")
    Path("data/a.jsonl").write_bytes(b'{"prompt": "p", "response": "r"}\nbad \xff\xfe\0\n\n{"prompt": "p"}')
    taken = gone_through(Files(train_files=("data/a.jsonl",)), Path("refused.jsonl"))
    assert (taken.rows, taken.good, taken.refused) == (3, 1, 2)
    assert str(taken.first[1]) == "data/a.jsonl:4: response is missing; it has prompt"
    kept = [json.loads(line) for line in Path("refused.jsonl").read_bytes().splitlines()]
    assert [line["where"] for line in kept] == ["data/a.jsonl:2", "data/a.jsonl:4"]
    assert kept[0]["raw"].encode("utf-8", "surrogateescape") == b"bad \xff\xfe\0"
    assert stat.S_IMODE(Path("refused.jsonl").stat().st_mode) == 0o600
    assert Path("refused.jsonl").read_bytes().isascii()
    taken = gone_through(Files(train_files=("data/b.jsonl",)), Path("none.jsonl"))
    assert (taken.rows, taken.good, taken.refused, taken.first) == (1, 1, 0, [])
    assert not Path("none.jsonl").exists()  # where all is well
    os.mkfifo("pipe")
    RefusedLog(Path("pipe"))
    assert Path("pipe").exists()  # nothing but a file is ever replaced


def test_a_disk_that_takes_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:  # not /dev/full: a log replaces the file at its path, and root may replace devices
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"), RefusedLog(Path("refused.jsonl")) as log:
        log.keep(RefusedRow("x:1", "bad", "raw"))
    with pytest.raises(KeyError), RefusedLog(Path("refused.jsonl")) as log:  # the first error is the one to hear of
        log.keep(RefusedRow("x:1", "bad", "raw"))
        raise KeyError


def test_only_the_first_few_are_shown_and_all_are_kept() -> None:
    with RefusedLog(Path("refused.jsonl")) as log:
        list(log.sift(RefusedRow(f"x:{number}", "bad", "") for number in range(1, 101)))
    assert list(map(str, log.first)) == [f"x:{number}: bad" for number in range(1, SHOWN + 1)]
    assert list(map(str, log.problems("error")[SHOWN:])) == [
        f"... and {100 - SHOWN} more",
        "data.on_bad_row: 100 of 100 rows are bad, kept in refused.jsonl; use skip",
    ]
    assert len(Path("refused.jsonl").read_text().splitlines()) == 100


@pytest.mark.parametrize(
    ("rows", "share", "held_out"),
    [(300, 0.1, 30), (300, 0.0, 0), (300, 0.5, 150), (19, 0.5, 0), (600, 0.5, 256)],
)
def test_a_share_of_the_rows_is_held_out(rows: int, share: float, held_out: int) -> None:
    given = [{"prompt": f"{n % (rows - rows // 20)}+1", "response": str(n), "ground_truth": "1"} for n in range(rows)]
    data = files_of("sums-0001.jsonl", given, val_share=share)
    by_kind = set[tuple[object, ...]]()
    for kind in ("answers", "prompts"):
        train, val = ([row for row in data.rows(split, kind) if isinstance(row, Row)] for split in ("train", "val"))
        assert len(train) + len(val) == rows and abs(len(val) - held_out) <= 1
        assert not {row.prompt for row in train} & {row.prompt for row in val}  # rows of one prompt stay together
        assert {row.data_source for row in train} == {"sums"}
        by_kind.add(tuple(row.where for row in val))
    assert len(by_kind) == 1  # whatever they are used for
    own = replace(data, val_files=data.train_files)
    assert [len(list(own.rows(split, "answers"))) for split in ("train", "val")] == [rows, rows]


def test_what_nothing_can_be_measured_of_is_not_held_out() -> None:
    data = files_of("asked.jsonl", [*({"prompt": str(n)} for n in range(100)), "bad\n"], val_share=0.5)
    assert [len(list(data.rows(split, "prompts"))) for split in ("train", "val")] == [101, 0]


def test_a_conversation_is_held_out_with_others_of_its_question() -> None:
    turns = [[{"role": "user", "content": f"q{n // 4}"}, {"role": "assistant", "content": f"a{n}"}] for n in range(80)]
    data = files_of("chats.jsonl", [{"messages": each} for each in turns], val_share=0.2)
    train, val = ([asked(row) for row in data.rows(split, "answers") if isinstance(row, Row)] for split in SPLITS)
    assert len(val) == 16 and not {*train} & {*val}


@pytest.mark.parametrize(
    ("name", "source"),
    [("own.csv", "own"), ("a/my data (1).jsonl.gz", "my-data-1"), ("train-00000-of-00003-ab12.parquet", "train"),
     ("math500.CSV", "math500"), (".jsonl", "rows"), ("raw/huggingface/ada/sums/0f/data/train.parquet", "ada/sums")],
)  # fmt: skip
def test_a_source_has_the_name_of_its_file(
    name: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path))
    assert source_of(str(tmp_path / name)) == source
    row = Files().row(RawRow(f"{tmp_path / name}:1", {"prompt": "p", "data_source": "its own"}, None), "prompts")
    assert isinstance(row, Row) and row.data_source == "its own"


def test_rows_that_are_there_twice() -> None:
    rows = [Row("a:1", "x"), Row("a:2", "y", "1"), Row("b:3", (Message("user", "x"),)), Row("b:7", "y", "2"),
            Row("b", "x", ground_truth="4", data_source="other")]  # fmt: skip
    assert count_repeats(rows, "prompts") == 2, "of two right answers one is not a repetition"
    games = [Row("a:1", "x", extra_info={"index": 1, "seed": 1}), Row("a:2", "x", extra_info={"seed": 2}),
             Row("a:3", "x", extra_info={"index": 3, "seed": 1})]  # fmt: skip
    assert count_repeats(games, "prompts") == 1
    turns = (Message("user", "x"), Message("assistant", "1"))
    assert count_repeats([Row("a:1", "x", "1"), Row("a:2", "x", "2"), Row("b:3", turns)], "answers") == 1
    pairs = [Row("a:1", "x", "1", rejected="2"), Row("a:2", "x", "1", rejected="3")]
    assert count_repeats(pairs, "pairs") == count_repeats([], "pairs") == 0
