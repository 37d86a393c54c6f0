"""Both ways of preparing give equal rows: in columns, and one by one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.core.problems import Problems
from launcher.data import convert
from launcher.data.convert import Converter
from launcher.data.files import Files
from launcher.data.prepare import prepare
from launcher.data.reader import read_rows
from launcher.data.refused import RefusedLog
from launcher.spec.data import Row, prompt_turns

QUESTION = 'How many "clips"?\nNone, or 5 \u00e9\u4e2d\U0001f600'
SOLUTION = "In May 48/2 = <<48/2=24>>24 clips.\n#### 1,024"
GSM8K = {"question": QUESTION, "answer": SOLUTION}


def converted(
    path: Path, folder: Path, kind: Any, *, in_columns: bool = True, **more: Any
) -> tuple[list[dict[str, Any]], list[tuple[str, str, str]]]:
    """The rows written, and place, reason and raw of those refused."""
    files, refused = Files(train_files=(str(path),), **more), folder / "refused.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        if not in_columns:
            patch.setattr(convert, "convert_columns", lambda *_: None)
        with RefusedLog(refused) as log:
            count = Converter(files, kind, log, lambda *_: None).convert({"train": [str(path)]}, folder)["train"]
    assert count == 0 or [*folder.glob("*.parquet.*"), *folder.glob("train-*")] == []
    rows = pq.read_table(folder / "train.parquet").to_pylist() if count else []
    kept = [json.loads(line) for line in refused.read_text().splitlines()] if refused.exists() else []
    assert count == len(rows)
    return rows, sorted((one["where"].removeprefix(f"{path}:"), one["reason"], one["raw"]) for one in kept)


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def asking(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]


EXTRA = {"extra_info": {"split": "train", "index": 0}}
HH = {"prompt": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: And\n\nmore?\n\nAssistant:", "chosen": " Yes.",
      "rejected": " No.", "response": " Yes."}  # fmt: skip


@pytest.mark.parametrize(("format", "kind", "row", "expected"), [
    ("gsm8k", "prompts", GSM8K, {
        "data_source": "openai/gsm8k", "ability": "math",
        "prompt": asking(f'{QUESTION} Let\'s think step by step and output the final answer after "####".'),
        "reward_model": {"style": "rule", "ground_truth": "1024"}, **EXTRA,
    }),
    ("hh", "pairs", HH, {
        "data_source": "Dahoas/full-hh-rlhf", "ability": "alignment", "prompt": asking("Hi", "Hello.", "And\n\nmore?"),
        "chosen": "Yes.", "rejected": "No.", **EXTRA,
    }),
])  # fmt: skip
def test_known_datasets_have_verls_columns(tmp_path: Path, format: Any, kind: Any, row: Any, expected: Any) -> None:
    assert converted(lines(tmp_path / "a.jsonl", [row]), tmp_path, kind, format=format) == ([expected], [])


FORMS = [
    ("prompts", "gsm8k", GSM8K),
    ("answers", "gsm8k", GSM8K),
    ("answers", "auto", {"prompt": "1+1?", "response": "2", "score": 0.5, "id": 3}),
    ("answers", "auto", {"question": "1+1?", "answer": "2"}),
    ("answers", "auto", {"prompt": "1+1?", "completion": "2"}),
    ("answers", "auto", {"instruction": "Add.", "input": "1+1", "output": "2"}),
    ("prompts", "auto", {"question": "1+1?", "answer": "2", "data_source": "sums", "ability": "math"}),
    ("pairs", "auto", {"prompt": "1+1?", "chosen": "2", "rejected": "3"}),
]
"""Kind, format and row of what is read in columns."""


@pytest.mark.parametrize(("kind", "format", "row"), FORMS, ids=lambda value: str(value)[:20])
def test_the_fast_way_is_taken_and_its_rows_read_as_they_were(
    tmp_path: Path, kind: Any, format: Any, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (json.dumps(row) + "\n").encode() * 3
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    pq.write_table(pa.Table.from_pylist([row] * 3), tmp_path / "a.parquet")
    slow = [converted(path, tmp_path, kind, in_columns=False, format=format) for path in sorted(tmp_path.glob("a.*"))]
    monkeypatch.setattr(Converter, "_columns_of", None)  # any row that was looked at alone would fail
    assert [converted(path, tmp_path, kind, format=format) for path in sorted(tmp_path.glob("a.*"))] == slow
    assert [len(rows) for rows, _ in slow] == [3, 3, 3]
    before, *_ = Files(train_files=(str(tmp_path / "a.jsonl"),), format=format).read("train", kind)
    after, *_ = Files(train_files=(str(tmp_path / "train.parquet"),)).read("train", kind)
    assert isinstance(before, Row) and isinstance(after, Row)
    assert _turns(after) == _turns(before)
    assert (after.rejected, after.data_source, after.ability) == (before.rejected, before.data_source, before.ability)
    assert kind != "prompts" or after.ground_truth == before.ground_truth


def _turns(row: Row) -> list[tuple[str, str]]:
    return [*prompt_turns(row), *([] if row.response is None else [("assistant", row.response)])]


ODD = [
    "",
    " ",
    "\u3000",
    "\x1c",
    "a\0b",
    "\ud800",
    "x",
    "5",
    "#### 7",
    "a #### -1,024.5 ",
    "#### 1/2",
    "####",
    "#### $3",
]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=6))
VALUES = st.one_of(TEXTS, TEXTS, TEXTS, st.none(), st.integers(), st.floats(), st.booleans(), st.just([]), st.just({}))
TURNS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "bot", "system"]), "content": TEXTS}),
        st.fixed_dictionaries({"role": VALUES}, optional={"content": VALUES, "tool_calls": VALUES}),
        VALUES,
    ),
    max_size=3,
)
KEYS = (
    "prompt", "question", "response", "answer", "completion", "instruction", "output", "conversations", "chosen",
    "rejected", "data_source", "ability", "score", "extra_info", "system", "tools", "label",
)  # fmt: skip
MEANING = {"label": st.booleans(), "system": TEXTS}
ROWS = st.one_of(
    st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS}, optional={"id": st.integers(), **MEANING}),
    st.fixed_dictionaries({"prompt": TEXTS, "response": TEXTS}, optional=dict.fromkeys(KEYS[3:], VALUES)),
    st.fixed_dictionaries({"prompt": TEXTS, "chosen": TEXTS, "rejected": TEXTS}),
    st.fixed_dictionaries({"messages": TURNS}, optional=MEANING),
    st.fixed_dictionaries({}, optional={**dict.fromkeys(KEYS, VALUES), "messages": TURNS}),
)
BROKEN = st.sampled_from(
    ["", "{", '{"question": "x"', "}", '{"question": "a", "answer": "#### 1"} {"question": "b", "answer": "#### 2"}',
     '{"question": "a", "question": "b"}', "[]", '"x"', "null", '{"x": NaN}', '{"x": 1e999}',
     '{"id": 18446744073709551616}']
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.one_of(ROWS, ROWS, ROWS, BROKEN), min_size=1, max_size=12),
    kind=st.sampled_from(["answers", "prompts", "pairs", "mixed"]),
    format=st.sampled_from(["auto", "auto", "gsm8k", "math", "hh"]),
    more=st.sampled_from([{}, {}, {"instruction": "Be brief."}, {"data_source": "x"}, {"prompt_key": "question"}]),
)
@example(  # as many rows as lines, but not one on each
    ['{"prompt": "1", "response": "2"}', '{"prompt": "a", "response": "b"} {"prompt": "c", "response": "d"}',
     '{"prompt": "e",', '"response": "f"}'], "answers", "auto", {},
)  # fmt: skip
@example(['{"prompt": "a", "response": "b"}\r', '{"prompt": "c", "response": "d"}\r'], "answers", "auto", {})
def test_any_rows_come_out_equal_and_none_is_lost(
    tmp_path_factory: Any, rows: list[Any], kind: Any, format: Any, more: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = lines(folder / "a.jsonl", rows)
    fast = converted(path, folder, kind, format=format, **more)
    slow = converted(path, folder, kind, in_columns=False, format=format, **more)
    assert fast == slow
    assert len(fast[0]) + len(fast[1]) == len(list(read_rows(str(path))))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.fixed_dictionaries({"prompt": TEXTS, "response": TEXTS, "score": st.floats()}), min_size=1),
    kind=st.sampled_from(["answers", "prompts"]),
)
@example([{"prompt": "x" * 4_300_000, "response": "b"}, {"prompt": "a", "response": "b"}], "answers")  # it is too long
def test_parquet_rows_come_out_equal(tmp_path_factory: Any, rows: list[dict[str, Any]], kind: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = folder / "a.parquet"
    for row in rows:
        row.update({key: row[key].encode("utf-8", "ignore").decode() for key in ("prompt", "response")})
    pq.write_table(pa.Table.from_pylist(rows), path)
    good, refused = converted(path, folder, kind)
    assert (good, refused) == converted(path, folder, kind, in_columns=False)
    assert len(good) + len(refused) == len(rows)


def info(index: int, **own: Any) -> dict[str, Any]:
    return {"split": "train", "index": index, **own}


OTHER_TYPES = "other types than in the rows before"
GROWING = [{}, {"level": 3}, {"level": 3.5, "tags": ["x"], "index": 99}, {"tags": {"x": 1}}]
GROWN = [info(0, level=None, tags=None), info(1, level=3.0, tags=None), info(2, level=3.5, tags=["x"])]


@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
@pytest.mark.parametrize(("own", "kept", "refused"), [
    (GROWING, GROWN, ["4"]),
    ([{"id": 0.5}, {"id": 2**60}], [info(0, id=0.5)], ["2"]),  # a number that the type of others would change
    ([{"id": 2**60}, {"id": 0.5}], None, []),  # it was written before the others came
])  # fmt: skip
def test_extra_info_grows_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[Any], kept: Any, refused: list[str], chunk: int
) -> None:
    """Whether rows are looked at together or not; each is read once."""
    monkeypatch.setattr(convert, "_CHUNK_ROWS", chunk)
    path = lines(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "1", "extra_info": more} for more in own])
    if kept is None:
        with pytest.raises(Problems, match=OTHER_TYPES):
            prepare(Files(train_files=(str(path),), on_bad_row="skip"), "prompts", tmp_path / "out", lambda _: None)
        return
    made, bad = converted(path, tmp_path, "prompts")
    assert [row["extra_info"] for row in made] == kept
    assert [(place, OTHER_TYPES in reason) for place, reason, _ in bad] == [(place, True) for place in refused]
