"""Bad rows of every kind, many at once: each is named by its row, and none is lost on the way."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from launcher.core.problems import Problems
from launcher.data.files import Files
from launcher.data.prepare import prepare, prepared
from launcher.data.refused import RefusedLog
from launcher.spec.data import RefusedRow
from launcher.tools.data_check import check

COUNT = 500
ROW = b'{"question": "%s", "answer": "%s"%s}'


def row(question: bytes = b"a", answer: bytes = b"#### 1", more: bytes = b"") -> bytes:
    return ROW % (question, answer, more)


GOOD = '{"question": "What is %d and one?", "answer": "Add one.\\n#### %d"}'

KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "invalid JSON": lambda draw: row()[:-9],
    "two objects on a line": lambda draw: row() + b" " + row(),
    "no object": lambda draw: draw.choice([b"[1]", b"null", b'"text"', b"7"]),
    "wrong type": lambda draw: b'{"question": %d, "answer": "#### 1"}' % draw.randint(0, 9),
    "missing key": lambda draw: draw.choice([b'{"question": "a"}', b'{"answer": "#### 1"}']),
    "null": lambda draw: b'{"question": null, "answer": "#### 1"}',
    "empty prompt": lambda draw: row(draw.choice([b"", b"  ", "\u3000".encode(), b"\\n"])),
    "NUL": lambda draw: row(draw.choice([b"a\\u0000b", b"a\0b"])),
    "lone surrogate": lambda draw: row(draw.choice([b"a\\ud83d", b"\\udc00"])),
    "no UTF-8": lambda draw: row(b"caf\xe9"),
    "key twice": lambda draw: row(more=b', "question": "b"'),
    "no number": lambda draw: row(answer=draw.choice([b"seven", b"#### x", b"####"])),
    "too large a number": lambda draw: row(more=draw.choice([b', "n": 1e999', b', "n": 99999999999999999999999'])),
    "too deep": lambda draw: row(more=b', "n": ' + b"[" * 5_000 + b"]" * 5_000),
    "too long": lambda draw: row(b"x" * 4_300_000),
}
RARE = {"too long": 2}


def made(path: Path, seed: int) -> dict[int, tuple[str, bytes]]:
    """A file of COUNT bad rows among twice as many good ones; kind and bytes of each bad row by its line."""
    draw, bad, lines = random.Random(seed), dict[int, tuple[str, bytes]](), list[bytes]()
    kinds = [kind for kind in KINDS if kind not in RARE]
    chosen = [*(kind for kind, count in RARE.items() for _ in range(count))]
    chosen += [kinds[place % len(kinds)] for place in range(COUNT - len(chosen))]
    places = set(draw.sample(range(3 * COUNT), COUNT))
    draw.shuffle(chosen)
    for place in range(3 * COUNT):
        if place in places:
            kind = chosen.pop()
            lines.append(KINDS[kind](draw))
            bad[place + 1] = (kind, lines[-1])
        else:
            lines.append((GOOD % (place, place + 1)).encode())
    path.write_bytes(b"\n".join(lines) + b"\n")
    return bad


@pytest.mark.parametrize("seed", range(2))
def test_each_bad_row_is_named_and_in_is_out_plus_refused(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    bad = made(tmp_path / "rows.jsonl", seed)
    assert len(bad) == COUNT
    assert len({kind for kind, _ in bad.values()}) == len(KINDS) >= 15
    files = Files(train_files=(str(tmp_path / "rows.jsonl"),), format="gsm8k", on_bad_row="skip")
    folder = prepare(files, "prompts", "rows", lambda _: None)
    kept = [json.loads(line) for line in (folder / "refused.jsonl").read_text().splitlines()]
    named = {int(row["where"].rpartition(":")[2]): row for row in kept}
    assert len(named) == len(kept)
    assert {line: bad[line][0] for line in sorted(bad)} == {line: bad.get(line, ("good",))[0] for line in sorted(named)}
    for line, (_, raw) in bad.items():
        assert named[line]["reason"]
        kept_raw = named[line]["raw"].encode("utf-8", "surrogateescape")
        assert kept_raw == (raw if len(raw) < 4_200_000 else b"")
    table = pq.read_table(folder / "train.parquet").to_pylist()
    truths = [int(row["reward_model"]["ground_truth"]) for row in table]
    assert truths == [line for line in range(1, 3 * COUNT + 1) if line not in bad]
    manifest = prepared(folder)
    assert manifest
    assert manifest.rows["train"] + manifest.refused == 3 * COUNT


def test_check_names_them_and_the_repeated_ones_and_those_in_both(tmp_path: Path) -> None:
    bad = made(tmp_path / "rows.jsonl", 7)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write((GOOD % (1, 2) + "\n").encode() * 2)  # said before, unless that row is a bad one
    (tmp_path / "val.jsonl").write_text(GOOD % (5_000, 1) + "\n" + GOOD % (1, 2) + "\n")
    files = Files(
        train_files=(str(tmp_path / "rows.jsonl"),), val_files=(str(tmp_path / "val.jsonl"),), format="gsm8k",
        train_batch_size=8,
    )  # fmt: skip
    report = check("rows", files, "prompts", None, tmp_path / "out", lambda _: None)
    assert (report.refused, report.rows) == (COUNT, {"train": 2 * COUNT + 2, "val": 2})
    assert report.repeated == (1 if 2 in bad else 2)
    assert report.in_both == 1
    assert not report.passed
    found = [json.loads(line) for line in (tmp_path / "out" / "findings.jsonl").read_text().splitlines()]
    assert [one["where"].rpartition("/")[2] for one in found if one["kind"] == "in both"] == ["val.jsonl:2"]
    repeated: list[Any] = [one["where"].rpartition(":")[2] for one in found if one["kind"] == "repeated"]
    assert repeated == [str(3 * COUNT + n) for n in (1, 2)][-report.repeated :]
    assert len((tmp_path / "out" / "refused.jsonl").read_text().splitlines()) == COUNT


ASKED = b"prompt,response\n"


@pytest.mark.parametrize(
    ("name", "content", "place", "reason"),
    [
        ("x.json", b'[{"prompt": "p", "response": "r"}]\n[{"prompt": "p"}]', ":1", "text after the end"),
        ("x.csv", ASKED + b'"p,r\n' + b"p,r\n" * 9, ":2", "a quote that begins in this row is never closed"),
        ("x.csv.gz", gzip.compress(ASKED + b"p,r\n" * 9, mtime=0)[:-9], ":", "the file breaks off behind this"),
        ("x.jsonl.gz", gzip.compress(b'{"prompt": "p", "response": "r"}\n' * 9, mtime=0)[:-9], ":", "the file breaks"),
        ("x.parquet", b"PAR1", "", "the parquet file is cut short or damaged"),
        ("x.jsonl", b"", "", "the file is empty"),
        ("x.txt", b"x", "", "the ending of"),
        ("none-*.jsonl", None, "", "the pattern matches no file"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_fault_that_ends_reading_is_never_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, place: str, reason: str
) -> None:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    good, path = tmp_path / "a.csv", tmp_path / name
    good.write_bytes(ASKED + b"1?,1\n\n3?\n")
    if content is not None:
        path.write_bytes(content)
    files = Files(train_files=(str(good), str(path)), on_bad_row="skip", train_batch_size=1)
    log = RefusedLog(None)
    list(log.sift(files.read("train", "answers")))
    [problem] = log.problems("skip")
    assert problem.where.startswith(f"{path}{place}") and problem.got.startswith(reason)
    report = check("x", files, "answers", None, tmp_path / "out", lambda _: None)
    assert str(problem) in report.wrong and "1 of " in report.notes[0]
    if not files.problems():
        with pytest.raises(Problems) as refused:
            prepare(files, "answers", "x", lambda _: None)
        assert list(map(str, refused.value.problems)) == [str(problem)]


def test_a_row_that_is_skipped_ends_no_file() -> None:
    log = RefusedLog(None)
    log.keep(RefusedRow("x:1", "bad", ""))
    assert log.problems("skip") == []
    log.keep(RefusedRow("x:2", "broken", "", ends_file=True))
    assert [str(problem) for problem in log.problems("error")] == [
        "x:2: broken; use the complete file, with rows", "x:1: bad", "data.on_bad_row: 1 of 2 rows are bad; use skip",
    ]  # fmt: skip
