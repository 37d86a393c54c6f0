"""CSV and JSON arrays: each row with its place, hostile files within bounds, and nothing lost."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.data import chunks, records
from launcher.data.chunks import read_rows
from launcher.data.files import Files
from launcher.data.prepare import prepare, prepared
from launcher.data.rows import RawRow
from launcher.spec.data import RefusedRow
from launcher.tools.advise import inspect_rows
from launcher.tools.data_check import check

ROW = '{"prompt": "1+1?", "response": "2"}'


def read(path: Path, content: bytes | str) -> list[tuple[str, Any]]:
    """Place and values of each row, or why it is refused."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = []
    for row in read_rows(str(path)):
        where = row.where.removeprefix(f"{path}").removeprefix(":")
        found.append((where, row.reason if isinstance(row, RefusedRow) else row.values))
    return found


# ---- CSV

UNQUOTED = "without one; put the field in quotes and double each quote in it"
NEVER = "a quote that begins in this row is never closed; close it, or double each quote in a text"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", "prompt,response\n1+1?,2\n", [("2", {"prompt": "1+1?", "response": "2"})]),
        ("x.csv", "a,b\r\n1,2\r\n\r\n3,4", [("2", {"a": "1", "b": "2"}), ("4", {"a": "3", "b": "4"})]),
        ("x.csv", "\ufeffa,b\n1,2\n\n\n", [("2", {"a": "1", "b": "2"})]),  # a byte order mark, blank lines at the end
        ("x.csv", '"a" , b\n', [("1", "text after the closing quote of field 1; double each quote in a text")]),
        ("x.csv", ' a , "b"\n', [("1", f"a quote inside field 2, which begins {UNQUOTED}")]),
        ("x.csv", 'a,b\n"x, ""y""\r\nz",\n3,4\n', 
         [("2", {"a": 'x, "y"\r\nz', "b": None}), ("4", {"a": "3", "b": "4"})]),
        ("x.csv", 'a,b\n"1","2"\r\n"",""\n', [("2", {"a": "1", "b": "2"}), ("3", {"a": None, "b": None})]),
        ("x.csv", ",a\n0,1\n", [("2", {"a": "1"})]),  # as pandas writes its index
        ("x.csv", "a;b\n1,5;2\n", [("2", {"a": "1,5", "b": "2"})]),
        ("x.tsv", "a\tb\n1,5\t2\n", [("2", {"a": "1,5", "b": "2"})]),
        ("x.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0), [("2", {"a": "1", "b": "2"})]),
        ("x.tsv.gz", gzip.compress(b"a\tb\n1\t2\n", mtime=0), [("2", {"a": "1", "b": "2"})]),
    ],
)  # fmt: skip
def test_csv_is_read_as_rfc_4180_says(tmp_path: Path, name: str, content: bytes | str, expected: Any) -> None:
    assert read(tmp_path / name, content) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "the row has 1 fields and the header 2; put texts that hold a separator in quotes"),
        (b"1,2,3", "the row has 3 fields and the header 2; put texts that hold a separator in quotes"),
        (b'5" pipe,2', f"a quote inside field 1, which begins {UNQUOTED}"),
        (b'1,"a"b"', "text after the closing quote of field 2; double each quote in a text"),
        (b'"1\n2"3,4', "text after the closing quote of field 1 in line 4; double each quote in a text"),
        (b'5" pipe,"1\n7,8\n"', f"a quote inside field 1, which begins {UNQUOTED}"),
        (b'"a"b,"1\n7,8\n"', "text after the closing quote of field 1; double each quote in a text"),
        (b"a\0,2", "a NUL character at byte offset 1"),
        (b"1,caf\xe9", "not UTF-8: byte 0xe9 at byte offset 5"),
        (b'1,"' + b"x\n" * 2_100_000 + b'"', "the row has 4,200,004 bytes; expected at most 4,194,304"),
        (b"x" * 4_300_000, "the row has 4,300,000 bytes; expected at most 4,194,304"),
        (b'"1\n' + b"x" * 5_000_000 + b'\n7,8\n2",3', "the row has 5,000,012 bytes; expected at most 4,194,304"),
        (b'1,"' + b"x" * 5_000_000 + b'\n7,8\n"', "the row has 5,000,009 bytes; expected at most 4,194,304"),
    ],
)  # fmt: skip
def test_a_bad_record_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "x.csv"
    found = read(path, b"a,b\n1,2\n" + line + b"\n3,4\n")
    after = 4 + line.count(b"\n")
    assert [where for where, _ in found] == ["2", "3", str(after)]
    assert [values for _, values in found] == [{"a": "1", "b": "2"}, reason, {"a": "3", "b": "4"}]
    [refused] = [row for row in read_rows(str(path)) if isinstance(row, RefusedRow)]
    assert refused.raw.encode("utf-8", "surrogateescape") == line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ("", "the file is empty")),
        (b"\n\n", ("", "the file is empty")),
        (b"a,b\n", ("", "the file has a header and no rows")),
        (b"a,b,a\n1,2,3\n", ("1", "column 'a' stands twice in the header; rename one")),
        (b",".join(b"%d" % n for n in range(600_000)), ("1", "the header has 600,000 columns; expected at most 4,096")),
        (b"," * 4097 + b"\n1\n", ("1", "the header has 4,098 columns; expected at most 4,096")),
        ("a,b\n1,2\n".encode("utf-16"), ("", "the file is UTF-16; save it as UTF-8")),
        (b"x" * 5_000_000 + b"\n1,2\n", ("1", "the row has 5,000,000 bytes; expected at most 4,194,304")),
        (b'a,"b\n1,2\n', ("1", NEVER)),
    ],
)  # fmt: skip
def test_a_csv_file_whose_columns_are_unknown_gives_no_row(tmp_path: Path, content: bytes, expected: Any) -> None:
    assert read(tmp_path / "x.csv", content) == [expected]
    assert [row.ends_file for row in read_rows(str(tmp_path / "x.csv")) if isinstance(row, RefusedRow)] == [True]


def test_a_quote_that_is_never_closed_is_named_where_it_begins(tmp_path: Path) -> None:
    found = read(tmp_path / "x.csv", 'a,b\n1,2\n3,"4\n5,6\n')
    assert found == [("2", {"a": "1", "b": "2"}), ("3", NEVER)]


@settings(max_examples=200, deadline=None, database=None)
@given(
    rows=st.lists(
        st.lists(st.text(st.sampled_from('a",;\n\r\t \u00e9'), max_size=6), min_size=2, max_size=2), min_size=1
    ),
    tabs=st.booleans(),
)
def test_what_pythons_writer_writes_is_read_back(tmp_path_factory: Any, rows: list[list[str]], tabs: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, "excel-tab" if tabs else "excel", quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "b"], *rows])
    found = read(tmp_path_factory.getbasetemp() / f"x.{'t' if tabs else 'c'}sv", out.getvalue())
    assert [values for _, values in found] == [{"a": a or None, "b": b or None} for a, b in rows]


@settings(max_examples=300, deadline=None, database=None)
@given(
    content=st.lists(st.sampled_from([b"a,b", b'"', b",", b"\n", b"\r\n", b"x", b"\0", b"\xff", b'""'])).map(b"".join)
)
def test_any_bytes_of_csv_come_out(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"a,b\n" + content)
    kept = [
        row.raw.encode("utf-8", "surrogateescape") if isinstance(row, RefusedRow) else row.line or b""
        for row in read_rows(str(path))
    ]
    assert kept
    blanks = b" \r\n"  # lines of them are no rows
    assert b"".join(kept).translate(None, blanks) == content.translate(None, blanks)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
@pytest.mark.parametrize(
    "turns", ["[{'role': 'user', 'content': 'q'}]", '[ {"from": "human"}]', "{'role': 'assistant'}"]
)
def test_a_list_that_is_written_as_text_is_not_learned(tmp_path: Path, name: str, turns: str) -> None:
    def rows(values: dict[str, str], kind: Any, **settings: Any) -> list[Any]:
        out = io.StringIO(newline="")
        writer = csv.writer(out, "excel-tab" if name == "x.tsv" else "excel")
        writer.writerows([values, values.values()])
        (tmp_path / name).write_text(out.getvalue())
        return list(Files(train_files=(str(tmp_path / name),), **settings).read("train", kind))

    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    for values, kind in (({"prompt": "p", "completion": "c"}, "answers"), (pair, "pairs")):
        assert not any(isinstance(row, RefusedRow) for row in rows(values, kind))
        for key in values:
            [row] = rows({**values, key: turns}, kind)
            assert row.reason == f"{key} is {WRITTEN}"
    for key in ("messages", "conversations"):
        [row] = rows({key: turns, "response": "r"}, "answers")
        assert row.reason == f"{key} is {WRITTEN}"
    [row] = rows({"chat": turns, "response": "r"}, "answers", prompt_key="chat")
    assert row.reason == f"chat is {WRITTEN}"
    [row] = rows({"prompt": "p", "response": '[{"name": "add"}]'}, "answers")
    assert row.response == '[{"name": "add"}]'  # an answer in JSON


WRITTEN = "a list written as text, which CSV cannot hold; save the rows as JSONL or parquet"


# ---- a JSON array


def numbered(*places: tuple[int, int]) -> list[str]:
    return [f"{line} (element {number})" for line, number in places]


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (f"[{ROW}]", [(1, 1)]),
        (f"\ufeff \n[\n{ROW},\n\n{ROW} , {ROW}\n]\n\n", [(3, 1), (5, 2), (5, 3)]),
        (json.dumps([json.loads(ROW)] * 2, indent=2), [(2, 1), (6, 2)]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_elements_have_their_line_and_number(tmp_path: Path, content: str, places: Any, packed: bool) -> None:
    written = gzip.compress(content.encode()) if packed else content
    found = read(tmp_path / ("x.json.gz" if packed else "x.json"), written)
    assert found == [(place, json.loads(ROW)) for place in numbered(*places)]


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("3", "the element is of type int; expected an object"),
        ("[1, [2]]", "the element is of type list; expected an object"),
        ("null", "the element is of type null; expected an object"),
        ("", "the element is empty; expected an object"),
        ('{"a":}', "invalid JSON at column 6: expecting value"),
        ('{"a": 1,\n "b"}', "invalid JSON at its line 2, column 5: expecting ':' delimiter"),
        ("}", "invalid JSON at column 1: expecting value"),
        ('{"a": NaN}', "NaN is no JSON number; use null"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice in one object"),
        (r'{"a": "x\u0000"}', "a holds a NUL character"),
        ('{"a": "x\0"}', "a NUL character at byte offset 8"),
        ('{"a":' * 200 + "1" + "}" * 200, "lists and objects are nested too deeply; expected at most 100 levels"),
        ("[" * 100_000 + "]" * 100_000, "lists and objects are nested too deeply; expected at most 100 levels"),
        ('{"a": "%s"}' % ("x" * 5_000_000), "the element has 5,000,009 bytes; expected at most 4,194,304"),
    ],
)
def test_a_bad_element_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, element: str, reason: str) -> None:
    path = tmp_path / "x.json"
    found = read(path, f"[{ROW},\n{element},\n{ROW}]")
    last = 3 + element.count("\n")
    good = json.loads(ROW)
    line = 2 if element else 3
    assert found == list(
        zip(numbered((1, 1), (line if element else 2, 2), (last, 3)), [good, reason, good], strict=True)
    )
    [refused] = [row for row in read_rows(str(path)) if isinstance(row, RefusedRow)]
    assert refused.raw == element


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        ("[]", "", "the array is empty"),
        (f"[{ROW}", "1 (element 2)", ""),
        (f"[{ROW},\n", "2 (element 2)", "the file breaks off in this element; the array is not closed"),
        (f'[{ROW},{{"a": "\\', "1 (element 2)", "the file breaks off in this element; the array is not closed"),
        ("[" * 1_000_000, "1 (element 1)", "the file breaks off in this element; the array is not closed"),
        (f"[{ROW}]\n{ROW}", "1", "text after the end of the array; expected one array"),
        (f"[{ROW}]]", "1", "text after the end of the array; expected one array"),
    ],
)
def test_an_array_that_does_not_end_well(tmp_path: Path, content: str, place: str, reason: str) -> None:
    *before, last = read(tmp_path / "x.json", content)
    if reason:
        assert last == (place, reason)
        assert all(isinstance(values, dict) for _, values in before)
    else:
        assert last[0] == "1 (element 1)" and "breaks off" in last[1]


def test_an_array_in_a_damaged_gzip_file_never_raises(tmp_path: Path) -> None:
    whole = gzip.compress(f"[{ROW},{ROW}]".encode())
    for place in range(2, len(whole)):
        assert read(tmp_path / "x.json.gz", whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert read(tmp_path / "x.json.gz", whole[:place])
    cut = read(tmp_path / "x.json.gz", whole[:-8] + b"12345678")
    assert cut[-1][1].startswith("the file breaks off after the array: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.sampled_from('a"\\[]{},\n\u00e9'), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab[]", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, database=None)
@given(rows=st.lists(JSON, min_size=1), indent=st.sampled_from([None, 1]), size=st.sampled_from([1, 2, 3, 7, 2**20]))
def test_any_array_is_read_alike_in_pieces_of_any_size(
    tmp_path_factory: Any, rows: list[Any], indent: Any, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_BYTES", size)
        elements = list(records.array_rows("x.json", io.BytesIO(json.dumps(rows, indent=indent).encode())))
    assert len(elements) == len(rows)
    for found, value in zip(elements, rows, strict=True):
        assert isinstance(found, RawRow) == isinstance(value, dict)
        assert json.loads((found.line or b"") if isinstance(found, RawRow) else found.raw) == value


@pytest.mark.parametrize(
    ("name", "start", "end", "first"),
    [
        ("x.json", b'[{"a": "', b'"},{"a": "b"}]', "1 (element 1)"),
        ("x.json", b"[" + b" " * 7, b'{"a": "b"}]', "101 (element 1)"),
        ("x.csv", b'a\n"', b'"\nb\n', "2"),
    ],
)
def test_a_row_of_100_mb_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: Any, name: str, start: bytes, end: bytes, first: str
) -> None:
    monkeypatch.setattr(records, "MAX_KEPT_BYTES", 5_000_000)
    monkeypatch.setattr(chunks, "MAX_KEPT_BYTES", 5_000_000)
    path = tmp_path / name
    fill = b" " * 999_999 + b"\n"
    with path.open("wb") as file:
        file.write(start)
        for _ in range(100):
            file.write(fill)
        file.write(end)
    tracemalloc.start()
    found = list(read_rows(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000
    assert found[0].where == f"{path}:{first}"
    assert isinstance(found[-1], RawRow) and found[-1].values == {"a": "b"}


LEFT = "too long to set aside: they stay in the file only"
TOO_LONG = (
    "the line has 6,000 bytes; expected at most 1,000 (too long to set aside: it stays in the file only); no row after"
    " it is read"
)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.csv", b'a\n1\n"' + b"y\n" * 3_000, f"{NEVER} (6,000 bytes, {LEFT})"),
        ("x.csv", b'a\n1\n"y\n' + b"y" * 6_000 + b'\n2"\n', TOO_LONG),
        ("x.csv", b"a\n1\n" + b"y" * 6_000 + b"\n2\n", TOO_LONG),
        ("x.json", b'[{"a": "1"}, {"a": "' + b"y" * 6_000,
         f"the file breaks off in this element; the array is not closed (6,007 bytes, {LEFT})"),
    ],
)  # fmt: skip
def test_what_is_too_long_to_keep_and_ends_the_file_has_its_size(
    tmp_path: Path, monkeypatch: Any, name: str, content: bytes, reason: str
) -> None:
    for module in (records, chunks):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 1_000)
        monkeypatch.setattr(module, "MAX_KEPT_BYTES", 5_000)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 1_000)
    path = tmp_path / name
    path.write_bytes(content)
    first, last = read_rows(str(path))
    assert isinstance(first, RawRow) and first.values == {"a": "1"}
    assert isinstance(last, RefusedRow) and last.reason == reason
    assert last.ends_file and len(last.raw) < 5


# ---- one reader


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.json", "x.json.gz"])
def test_prepare_check_and_advise_read_them_alike(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "store"))
    rows = [{"instruction": "add", "input": f"{n}+1", "output": str(n + 1)} for n in range(2_000)]
    sign = "\t" if name == "x.tsv" else ","
    lines = [sign.join(rows[0]), *(sign.join(row.values()) for row in rows), "x"]
    text = json.dumps([*rows, "x"], indent=0) if "json" in name else "\n".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert inspect_rows(str(path)) == "answers"
    files = Files(train_files=(str(path),), on_bad_row="skip", train_batch_size=8)
    folder = prepare(files, "answers", "rows", lambda _: None)
    made = prepared(folder)
    assert made is not None and (made.rows, made.refused) == ({"train": 2_000}, 1)
    [after, *_] = Files(train_files=(str(folder / "train.parquet"),)).read("train", "answers")
    assert not isinstance(after, RefusedRow) and str(after.prompt).count("add\\n0+1") == 1
    report = check("rows", files, "answers", None, tmp_path / "out", lambda _: None)
    assert (report.refused, report.rows) == (1, {"train": 2_000, "val": 0})
