"""Reading files: nothing raises, nothing is lost, and every refusal names its place and reason."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.data import reader, records
from launcher.data.reader import read_rows
from launcher.data.rows import RawRow
from launcher.spec.data import RefusedRow

GOOD = b'{"prompt": "a"}'
ENDED = ".jsonl, .json, .ndjson, .csv, .tsv, .jsonl.gz, .json.gz, .ndjson.gz, .csv.gz, .tsv.gz or .parquet"
ROW = '{"prompt": "1+1?", "response": "2"}'


def read(path: Path, content: bytes | None = None) -> list[RawRow | RefusedRow]:
    if content is not None:
        path.write_bytes(content)
    return list(read_rows(str(path)))


def shown(found: list[RawRow | RefusedRow]) -> list[tuple[str, Any]]:
    """Place of each row, and its values or why it is refused."""
    places = [row.where.partition(":")[2] for row in found]
    what = [row.reason if isinstance(row, RefusedRow) else row.values for row in found]
    return list(zip(places, what, strict=True))


def good(found: list[RawRow | RefusedRow]) -> list[dict[str, Any]]:
    return [row.values for row in found if isinstance(row, RawRow)]


def back(row: RawRow | RefusedRow) -> bytes:
    """The row as it stood in its file."""
    return row.raw.encode("utf-8", "surrogateescape") if isinstance(row, RefusedRow) else row.line or b""


QUOTE = "',' expected after '\"'; put the text in quotes and double each quote in it"
NEVER = "a quote that begins in this row is never closed; close it, or double each quote in a text"
OPEN = (
    "the row has more than 4,194,304 bytes (it stays in the file only): a quote in it may be open; no row after it is"
    " read"
)
FIELDS = "fields and the header 2; put texts that hold a separator in quotes"
TOO_LONG = "bytes; expected at most 4,194,304 (it stays in the file only)"
DEEP = "lists and objects are nested too deeply; expected at most 100 levels"
NO_INT = "does not fit 64 bits; write it as text would"
UNREAD = "no element after it is read"
AFTER = "neither a comma nor ] follows this element, or the file breaks off behind it"
NO_JSON = "the element is no JSON, or the file breaks off in it: expecting value at its character"
AB = {"a": "1", "b": "2"}
AT_1, AT_2 = ("1 (element 1)", AB), ("1 (element 2)", AB)
LONG = reader.MAX_ROW_BYTES - 9


def parquet(*columns: tuple[str, Any], **options: Any) -> bytes:
    names, arrays = zip(*columns, strict=True)
    pq.write_table(pa.Table.from_arrays([pa.array(values) for values in arrays], names), out := io.BytesIO(), **options)
    return out.getvalue()


NEIGHBOURS = {  # a file with a BAD row between two others, and their places, where the bad one has so many more lines
    "x.jsonl": (b'{"a": "1", "b": "2"}\nBAD\n{"a": "1", "b": "2"}\n', lambda _: ["1", "2", "3"]),
    "x.csv": (b"a,b\n1,2\nBAD\n1,2\n", lambda more: ["2", "3", f"{4 + more}"]),
    "x.json": (b'\xef\xbb\xbf \n[\n{"a": "1", "b": "2"},\n\nBAD,\n{"a": "1", "b": "2"}\n]\n\n',
               lambda more: ["3 (element 1)", "5 (element 2)", f"{6 + more} (element 3)"]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "row", "reason"), [
    ("x.jsonl", b'{"a": 1', "invalid JSON at column 8: expecting ',' delimiter"),
    ("x.jsonl", b'{"a": 1} {"b": 2}', "invalid JSON at column 10: extra data"),  # two objects on one line
    ("x.jsonl", b'{"a": "\t"}', "invalid JSON at column 8: invalid control character at"),  # a tab must be written \t
    ("x.jsonl", b"[1, 2]", "the line is of type list; expected one object on each line"),
    ("x.jsonl", b"null", "the line is of type null; expected one object on each line"),
    ("x.jsonl", b'{"a": "caf\xe9"}', "not UTF-8: byte 0xe9 at byte offset 10"),  # Latin-1
    ("x.jsonl", b'{"a": "x\0y"}', "a NUL character at byte offset 8"),
    ("x.jsonl", rb'{"a": ["x", "\u0000"]}', "a[1] holds a NUL character"),
    ("x.jsonl", rb'{"a\u0000": 1}', r"'a\x00' holds a NUL character"),  # in a key
    ("x.jsonl", rb'{"turns": [{"content": "ab\ud800"}]}', "turns[0].content holds a lone surrogate at character 2"),
    ("x.jsonl", b'{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' stands twice in one object"),  # json would say nothing
    ("x.jsonl", b'{"a": 1e999}', "the number '1e999' is too large; write it as text"),  # json makes it infinite
    ("x.jsonl", b'{"a": 18446744073709551616}', f"the whole number '18446744073709551616' {NO_INT}"),
    ("x.jsonl", b'{"a": %s}' % (b"7" * 5000), f"the whole number '{'7' * 26}... {NO_INT}"),
    ("x.jsonl", b'{"a":' * 101 + b"1" + b"}" * 101, DEEP),
    ("x.jsonl", b'{"a": "%s"}' % (b"x" * (LONG + 1)), f"the line has 4,194,305 {TOO_LONG}"),
    ("x.jsonl", b'{"a": "%s"}' % (b"x" * 10_000_000), f"the line has 10,000,009 {TOO_LONG}"),
    ("x.csv", b"1", f"the row has 1 {FIELDS}"),
    ("x.csv", b"1,2,3", f"the row has 3 {FIELDS}"),
    ("x.csv", b'1,"a"b"', QUOTE),
    ("x.csv", b'"1\n2"3,4', QUOTE),
    ("x.csv", b"a\0,2", "a NUL character at byte offset 1"),
    ("x.csv", b"1,caf\xe9", "not UTF-8: byte 0xe9 at byte offset 5"),
    ("x.json", b"3", "the element is of type int; expected an object"),
    ("x.json", b'{"a": 1,\n "a": 2}', "key 'a' stands twice in one object"),  # as on a line
    ("x.json", b'{"a": "%s"}' % (b"x" * 5_000_000), f"the element has 5,000,009 {TOO_LONG}"),
], ids=lambda value: ascii(value)[:40])  # fmt: skip
def test_a_bad_row_is_refused_whole_and_its_neighbours_are_read(
    tmp_path: Path, name: str, row: bytes, reason: str
) -> None:
    content, places = NEIGHBOURS[name]
    found = read(tmp_path / name, content := content.replace(b"BAD", row))
    assert shown(found) == list(zip(places(row.count(b"\n")), [AB, reason, AB], strict=True))
    assert back(found[1]) == (b"" if len(row) > reader.MAX_ROW_BYTES else row)
    assert shown(read(tmp_path / f"{name}.gz", gzip.compress(content, 1))) == shown(found)


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("x.jsonl", GOOD, [("1", {"prompt": "a"})]),  # no newline at the end
    ("x.jsonl", b"\xef\xbb\xbf" + GOOD + b"\n", [("1", {"prompt": "a"})]),  # a byte order mark
    ("x.jsonl", GOOD + b"\r\n" + GOOD + b"\r\n", [("1", {"prompt": "a"}), ("2", {"prompt": "a"})]),  # Windows
    ("x.jsonl", rb'{"a": "\ud83d\ude00"}', [("1", {"a": "\U0001f600"})]),  # a pair of surrogates is one character
    ("x.jsonl", b'{"a": "\xe2\x80\xa8"}\n', [("1", {"a": "\u2028"})]),  # a line separator ends no line of a file
    ("x.jsonl", b'{"a": 18446744073709551615, "b": -9223372036854775808}', [("1", {"a": 2**64 - 1, "b": -(2**63)})]),
    ("x.jsonl", b'{"a": "%s"}' % (b"[{" * 200), [("1", {"a": "[{" * 200})]),  # brackets in text are no depth
    ("x.jsonl", b'{"a":' * 100 + b"1" + b"}" * 100, [("1", json.loads('{"a":' * 100 + "1" + "}" * 100))]),
    ("x.jsonl", b'{"a": "%s"}' % (b"x" * LONG), [("1", {"a": "x" * LONG})]),
    ("x.jsonl", b"", [("", "the file is empty")]),
    ("x.jsonl", gzip.compress(GOOD, mtime=0), [("1", {"prompt": "a"})]),  # gzip is known by its first bytes
    ("x.jsonl.gz", GOOD, [("1", {"prompt": "a"})]),
    ("x.jsonl.gz", gzip.compress(b"\n \n", mtime=0), [("", "the file is empty")]),
    ("x.txt", b"a,b", [("", f"the ending of 'x.txt' is not known; expected {ENDED}")]),
    ("a.jsonl.zst", b"x", [("", "the ending of 'a.jsonl.zst' is not known; unpack it: zstd -d a.jsonl.zst")]),
    ("a.tar.gz", b"x", [("", "the ending of 'a.tar.gz' is not known; unpack it: tar xzf a.tar.gz")]),
    ("a.json", b'{\n "version": 1,\n "data": [\n  {"prompt": "q"}]}', [("", "one object over several lines holds the"
     " rows; write one on each line: jq -c '.data[]' a.json > rows.jsonl")]),
    ("folder.jsonl", None, [("", "cannot be read: is a folder, not a file")]),
    ("pipe.jsonl", None, [("", "cannot be read: is a pipe, not a file")]),  # and is not waited for
    ("gone.jsonl", None, [("", "cannot be read: no such file or directory")]),
    # CSV, as RFC 4180 says
    ("x.csv", b"a,b\r\n1,2\r\n\r\n1,2", [("2", AB), ("4", AB)]),
    ("x.csv", b"\xef\xbb\xbfa,b\n1,2\n\n\n", [("2", AB)]),  # a byte order mark, blank lines at the end
    ("x.csv", b"\n\n a , b\n1,2\n", [("4", AB)]),
    ("x.csv", b'a,b\n"x, ""y""\r\nz",\n1,2\n', [("2", {"a": 'x, "y"\r\nz', "b": None}), ("4", AB)]),
    ("x.csv", b",a\n0,1\n", [("2", {"a": "1"})]),  # as pandas writes its index
    ("x.csv", b'a,b\n5" pipe,2\n', [("2", {"a": '5" pipe', "b": "2"})]),
    ("x.csv", b"a;b\n1,5;2\n", [("2", {"a": "1,5", "b": "2"})]),
    ("x.tsv", b"a\tb\n1,5\t2\n", [("2", {"a": "1,5", "b": "2"})]),
    ("x.tsv.gz", gzip.compress(b"a\tb\n1\t2\n", mtime=0), [("2", AB)]),
    ("x.csv", b'a,b\n1,2\n3,"4\n5,6\n', [("2", AB), ("3", NEVER)]),
    ("x.csv", b"a,b\n1,2\n" + b"x" * 5_000_000 + b"\n3,4", [("2", AB), ("3", OPEN)]),
    ("x.csv", b'a,b\n1,2\n"' + (b"x" * 999 + b"\n") * 4_200 + b'"\n2', [("2", AB), ("3", OPEN)]),
    ("x.csv", b"\n\n", [("", "the file is empty")]),
    ("x.csv", b"a,b\n", [("", "the file has a header and no rows")]),
    ("x.csv", b"a,b,a\n1,2,3\n", [("1", "column 'a' stands twice in the header; rename one")]),
    ("x.csv", b"," * 4097 + b"\n1\n", [("1", "the header has 4,098 columns; expected at most 4,096")]),
    ("x.csv", b'a,"b\n1,2\n', [("1", NEVER)]),
    # a JSON array
    ("x.json", b'[{"a": "1", "b": "2"} , {"a": "1", "b": "2"}]', [AT_1, AT_2]),
    ("x.json", b"[]", [("", "the array is empty")]),
    ("x.json", b'[{"a": "1", "b": "2"}', [AT_1, ("1 (element 1)", AFTER)]),
    ("x.json", b'[{"a": "1", "b": "2"} {}]', [AT_1, ("1 (element 1)", AFTER)]),
    ("x.json", b'[{"a": "1", "b": "2"},\n', [AT_1, ("2 (element 2)", f"{NO_JSON} 1; {UNREAD}")]),
    ("x.json", b'[{"a": "1", "b": "2"},{"a": }, {}]', [AT_1, ("1 (element 2)", f"{NO_JSON} 7; {UNREAD}")]),
    ("x.json", b"[" * 1_000_000, [("1 (element 1)", f"{DEEP}; {UNREAD}")]),
    ("x.json", b'[{"a": "1", "b": "2"}]\n{}', [AT_1, ("1", "text after the end of the array; expected one array")]),
    # parquet
    ("x.parquet", b"", [("", "the file is empty")]),
    ("x.parquet", parquet(("a", pa.array([], pa.string()))), [("", "the file is empty")]),
    ("x.parquet", parquet(("a", [1]), ("a", [2])), [("", "column 'a' stands twice")]),
], ids=lambda value: ascii(value)[:40])  # fmt: skip
def test_what_a_file_holds(tmp_path: Path, monkeypatch: Any, name: str, content: bytes | None, expected: Any) -> None:
    """A refused row among these ends the reading."""
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    os.mkfifo("pipe.jsonl")
    found = read(Path(name), content)
    assert shown(found) == expected
    assert all(row.ends_file and row.where.startswith(name) for row in found if isinstance(row, RefusedRow))


LINES = st.one_of(
    st.binary(max_size=30).filter(lambda line: b"\n" not in line),
    st.text(max_size=30).map(lambda text: json.dumps({"prompt": text}).encode()),
    st.sampled_from([b"", b"\r", GOOD, b"[", b"\xef\xbb\xbf" + GOOD, rb'{"a": "\ud800"}', b'{"a": NaN}']),
)


@settings(max_examples=80, deadline=None, database=None)
@given(content=st.one_of(st.binary(), st.lists(LINES).map(b"\n".join)), size=st.sampled_from([1, 16, 2**20]))
def test_any_bytes_in_is_out_plus_refused(tmp_path_factory: Any, content: bytes, size: int) -> None:
    content = content.lstrip(b"\x1fP")  # what begins like gzip or parquet is another test's
    lines = [(str(number), line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK_BYTES", size)
        found = read(tmp_path_factory.getbasetemp() / "any.jsonl", content)
    if not lines:
        assert [item.reason for item in found if isinstance(item, RefusedRow)] == ["the file is empty"]
        return
    assert [(item.where.rpartition(":")[2], back(item)) for item in found] == lines


# ---- gzip


def test_a_gzip_file_cut_anywhere_says_where_it_ends(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reader, "CHUNK_BYTES", 256)
    lines = [b'{"n": %d, "text": "%s"}' % (n, os.urandom(20).hex().encode()) for n in range(1_000)]
    whole, most = gzip.compress(b"\n".join(lines)), 0
    for cut in range(2, len(whole), 3_001):
        *before, last = read(tmp_path / "x.jsonl.gz", whole[:cut])
        assert isinstance(last, RefusedRow) and last.ends_file
        assert last.where.endswith(f"x.jsonl.gz:{len(before) + 1}")
        assert last.reason.startswith("the file breaks off behind this line: compressed file ended before")
        assert good(before) == [json.loads(line) for line in lines[: len(before)]]
        most = max(most, len(before))
    assert most > 700


@pytest.mark.parametrize(("name", "whole"), [
    ("x.jsonl.gz", gzip.compress(b"\n".join([GOOD] * 50))),
    ("x.json.gz", gzip.compress(f"[{ROW},{ROW}]".encode())),
    ("x.csv.gz", gzip.compress(b"a,b\n1,2\n3,4")),
    ("x.parquet", parquet(("prompt", [[{"role": "user"}]] * 3), ("text", ["a", "b", "c"]), compression="none")),
], ids=lambda value: str(value)[:10])  # fmt: skip
def test_a_file_cut_or_damaged_anywhere_never_raises(tmp_path: Path, name: str, whole: bytes) -> None:
    for place in range(2, len(whole), 11 if name == "x.parquet" else 1):
        assert read(tmp_path / name, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        *before, last = read(tmp_path / name, whole[:place])
        if name == "x.parquet":  # what it holds is told at its end
            assert isinstance(last, RefusedRow) and not before
            assert (last.where, last.raw) == (str(tmp_path / name), "")
            assert last.reason.startswith("the parquet file is cut short or damaged, no row from here on: ")


@settings(max_examples=100, deadline=None, database=None)
@given(
    content=st.lists(st.sampled_from([b"a,b", b'"', b",", b"\n", b"\r\n", b"x", b"\0", b"\xff", b'""'])).map(b"".join)
)
def test_any_bytes_of_csv_come_out(tmp_path_factory: Any, content: bytes) -> None:
    found = read(tmp_path_factory.getbasetemp() / "any.csv", b"a,b\n" + content)
    blanks = b" \r\n"  # lines of them are no rows
    assert b"".join(map(back, found)).translate(None, blanks) == content.translate(None, blanks)


# ---- a JSON array


def test_an_array_that_is_too_large_becomes_json_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    size = len(content := f"[{ROW}]".encode())
    command = "gzip -dc x.json.gz | jq -c '.[]' > x.jsonl"
    reason = f"a JSON array may have at most {size - 1} bytes; make JSON lines of it: {command}"
    for most, what in ((size, json.loads(ROW)), (size - 1, reason)):
        monkeypatch.setattr(records, "MAX_ARRAY_BYTES", most)
        [(_, found)] = shown(read(Path("x.json.gz"), gzip.compress(content)))
        assert found == what


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.sampled_from('a"\\[]{},\n\u00e9'), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab[]", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None, database=None)
@given(rows=st.lists(JSON, min_size=1), indent=st.sampled_from([None, 1]))
def test_any_array_is_read(rows: list[Any], indent: Any) -> None:
    elements = list(records.array_rows("x.json", io.BytesIO(json.dumps(rows, indent=indent).encode())))
    assert [json.loads(back(found)) for found in elements] == rows
    assert [isinstance(found, RawRow) for found in elements] == [isinstance(value, dict) for value in rows]


def test_long_elements_come_few_at_a_time_and_an_array_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(f"[{','.join([json.dumps({'a': 'x' * 900_000})] * 20)}]")
    tracemalloc.start()
    chunks = reader.read_chunks(str(path))
    first = next(iter(chunks))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert not isinstance(first, RefusedRow) and len(list(first)) == 3  # the first to reach CHUNK_BYTES
    assert held < 1.5 * path.stat().st_size


@pytest.mark.parametrize(("name", "start", "end"), [("x.jsonl", b'{"a": "', b'"}\n'), ("x.csv", b'a\n"', b'"\n')])
def test_a_row_of_100_mb_is_not_held_in_memory(tmp_path: Path, name: str, start: bytes, end: bytes) -> None:
    path = tmp_path / name
    fill = b" " * 999_999 + (b" " if name == "x.jsonl" else b"\n")
    with path.open("wb") as file:
        file.writelines([start, *[fill] * 100, end])
    tracemalloc.start()
    found = list(read_rows(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert len(found) == 1


# ---- parquet


def test_reading_parquet_leaves_no_thread_that_holds_the_file(tmp_path: Path) -> None:
    """A thread of Arrow's that lets go of a Python file during the interpreter's end aborts the process."""
    (tmp_path / "x.parquet").write_bytes(parquet(("prompt", ["a", "b"])))
    code = """
import os, sys, pyarrow.parquet
from launcher.data.reader import read_rows
before = len(os.listdir("/proc/self/task"))
next(iter(read_rows(sys.argv[1])))
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.parquet"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


def test_a_parquet_file_damaged_in_the_middle_gives_the_rows_before(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"text {n}" for n in range(40)]
    whole = parquet(("prompt", texts), row_group_size=10, compression="gzip", use_dictionary=False)
    start = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(2).column(0).data_page_offset
    found = read(path, whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    assert good(found) == [{"prompt": text} for text in texts[:20]]
    assert [item.where for item in found if isinstance(item, RefusedRow)] == [f"{path}:21"]


BROKEN = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
)


@pytest.mark.parametrize(("column", "reason"), [
    (["a", "b\0"], "a holds a NUL character"),
    (["a", "x" * 5_000_000], "the row has 5,000,000 characters; expected at most 4,194,304"),
    (BROKEN, "not UTF-8: byte 0xff at byte offset 0 of a text"),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_a_bad_parquet_row_does_not_take_its_neighbour_along(tmp_path: Path, column: Any, reason: str) -> None:
    assert shown(read(tmp_path / "x.parquet", parquet(("a", column)))) == [("1", {"a": "a"}), ("2", reason)]
