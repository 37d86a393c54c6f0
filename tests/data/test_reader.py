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
ROW = '{"prompt": "1+1?", "response": "2"}'


def read(path: Path, content: bytes | str | None = None) -> list[RawRow | RefusedRow]:
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_rows(str(path)))


def shown(found: list[RawRow | RefusedRow]) -> list[tuple[str, Any]]:
    """Place of each row, and its values or why it is refused."""
    places = [row.where.rpartition("/")[2].partition(":")[2] for row in found]
    what = [row.reason if isinstance(row, RefusedRow) else row.values for row in found]
    return list(zip(places, what, strict=True))


def good(found: list[RawRow | RefusedRow]) -> list[dict[str, Any]]:
    return [row.values for row in found if isinstance(row, RawRow)]


def back(row: RawRow | RefusedRow) -> bytes:
    """The row as it stood in its file."""
    return row.raw.encode("utf-8", "surrogateescape") if isinstance(row, RefusedRow) else row.line or b""


# ---- lines of JSON


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "invalid JSON at column 8: expecting ',' delimiter"),
        (b'{"a": 1} {"b": 2}', "invalid JSON at column 10: extra data"),  # two objects on one line
        (b'{"a": "\t"}', "invalid JSON at column 8: invalid control character at"),  # a tab must be written \t
        (b"[1, 2]", "the line is of type list; expected one object on each line"),
        (b'{"a": "caf\xe9"}', "not UTF-8: byte 0xe9 at byte offset 10"),  # Latin-1
        (b'{"a": "x\0y"}', "a NUL character at byte offset 8"),
        (rb'{"a": ["x", "\u0000"]}', "a[1] holds a NUL character"),
        (rb'{"a\u0000": 1}', r"'a\x00' holds a NUL character"),  # in a key
        (rb'{"messages": [{"content": "ab\ud800"}]}', "messages[0].content holds a lone surrogate at character 2"),
        (
            b'{"a": 1, "b": {"c": 1, "c": 2}}',
            "key 'c' stands twice in one object",
        ),  # json would keep one and say nothing
        (b'{"a": 1e999}', "the number '1e999' is too large; write it as text"),  # json makes it infinite
        (
            b'{"a": 18446744073709551616}',
            "the whole number '18446744073709551616' does not fit 64 bits; write it as text would",
        ),
        (b'{"a": %s}' % (b"7" * 5000), f"the whole number '{'7' * 26}... does not fit 64 bits; write it as text would"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "lists and objects are nested too deeply; expected at most 100 levels"),
    ],
)
def test_a_bad_line_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    found = read(tmp_path / "x.jsonl", b"\n".join([GOOD, line, GOOD]) + b"\n")
    assert shown(found) == [("1", {"prompt": "a"}), ("2", reason), ("3", {"prompt": "a"})]
    assert back(found[1]) == line


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (GOOD, [{"prompt": "a"}]),  # no newline at the end
        (b"\xef\xbb\xbf" + GOOD + b"\n", [{"prompt": "a"}]),  # a byte order mark
        (GOOD + b"\r\n" + GOOD + b"\r\n", [{"prompt": "a"}] * 2),  # Windows
        (rb'{"a": "\ud83d\ude00"}', [{"a": "\U0001f600"}]),  # a pair of surrogates is one character
        (b'{"a": "\xe2\x80\xa8"}\n', [{"a": "\u2028"}]),  # a line separator ends no line of a file
        (b'{"a": 18446744073709551615, "b": -9223372036854775808}', [{"a": 2**64 - 1, "b": -(2**63)}]),
        (b'{"a": "%s"}' % (b"[{" * 200), [{"a": "[{" * 200}]),  # brackets in text are no depth
        (b'{"a":' * 100 + b"1" + b"}" * 100, [json.loads('{"a":' * 100 + "1" + "}" * 100)]),
    ],
)
def test_unusual_lines_that_are_fine(tmp_path: Path, content: bytes, values: list[dict[str, Any]]) -> None:
    assert [found for _, found in shown(read(tmp_path / "x.jsonl", content))] == values


@pytest.mark.parametrize("more", [0, 1, 6_000_000])
def test_the_longest_line_is_read_and_a_longer_one_is_not(tmp_path: Path, more: int) -> None:
    line = b'{"a": "' + b"x" * (reader.MAX_ROW_BYTES - 9 + more) + b'"}'
    first, found, last = shown(read(tmp_path / "x.jsonl", b"\n".join([GOOD, line, GOOD])))
    assert (first, last) == (("1", {"prompt": "a"}), ("3", {"prompt": "a"}))
    assert isinstance(found[1], str) == bool(more)
    assert not more or found[1].startswith(f"the line has {len(line):,} bytes; expected at most 4,194,304")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.jsonl", b"", "the file is empty"),
        ("x.parquet", b"", "the file is empty"),
        ("x.jsonl.gz", gzip.compress(b"\n \n", mtime=0), "the file is empty"),
        ("x.csv", b"\n\n", "the file is empty"),
        ("x.txt", b"a,b", "the ending of 'x.txt' is not known"),
        ("x.parquet", b"no parquet at all", "the parquet file is cut short or damaged"),
        ("folder.jsonl", None, "cannot be read: is a folder, not a file"),
        ("gone.jsonl", None, "cannot be read: no such file or directory"),
    ],
)
def test_a_file_without_rows(tmp_path: Path, monkeypatch: Any, name: str, content: bytes, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    [found] = read(Path(name), content)
    assert isinstance(found, RefusedRow) and found.ends_file
    assert (found.where, found.reason[: len(reason)]) == (name, reason)


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


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.jsonl.gz", gzip.compress(GOOD, mtime=0)), ("x.jsonl", gzip.compress(GOOD, mtime=0)), ("x.jsonl.gz", GOOD)],
)
def test_gzip_is_known_by_its_first_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    assert good(read(tmp_path / name, content)) == [{"prompt": "a"}]


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


@pytest.mark.parametrize("content", [b"\n".join([GOOD] * 50), f"[{ROW},{ROW}]".encode(), b"a,b\n1,2\n3,4"])
def test_a_damaged_gzip_file_never_raises(tmp_path: Path, content: bytes) -> None:
    whole, name = gzip.compress(content), {b"{": "x.jsonl.gz", b"[": "x.json.gz"}.get(content[:1], "x.csv.gz")
    for place in range(2, len(whole)):
        assert read(tmp_path / name, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert read(tmp_path / name, whole[:place])[-1:]


# ---- CSV

QUOTE = "',' expected after '\"'; put the text in quotes and double each quote in it"
NEVER = "a quote that begins in this row is never closed; close it, or double each quote in a text"
OPEN = "(it stays in the file only): a quote in it may be open; no row after it is read"
FIELDS = "fields and the header 2; put texts that hold a separator in quotes"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.csv", "a,b\r\n1,2\r\n\r\n3,4", [("2", {"a": "1", "b": "2"}), ("4", {"a": "3", "b": "4"})]),
        ("x.csv", "\ufeffa,b\n1,2\n\n\n", [("2", {"a": "1", "b": "2"})]),  # a byte order mark, blank lines at the end
        ("x.csv", "\n\n a , b\n1,2\n", [("4", {"a": "1", "b": "2"})]),
        ("x.csv", 'a,b\n"x, ""y""\r\nz",\n3,4\n',
         [("2", {"a": 'x, "y"\r\nz', "b": None}), ("4", {"a": "3", "b": "4"})]),
        ("x.csv", ",a\n0,1\n", [("2", {"a": "1"})]),  # as pandas writes its index
        ("x.csv", 'a,b\n5" pipe,2\n', [("2", {"a": '5" pipe', "b": "2"})]),
        ("x.csv", "a;b\n1,5;2\n", [("2", {"a": "1,5", "b": "2"})]),
        ("x.tsv", "a\tb\n1,5\t2\n", [("2", {"a": "1,5", "b": "2"})]),
        ("x.tsv.gz", gzip.compress(b"a\tb\n1\t2\n", mtime=0), [("2", {"a": "1", "b": "2"})]),
        ("x.csv", 'a,b\n1,2\n3,"4\n5,6\n', [("2", {"a": "1", "b": "2"}), ("3", NEVER)]),
        ("x.csv", b"a,b\n1,2\n" + b"x" * 5_000_000 + b"\n3,4", [("2", {"a": "1", "b": "2"}), ("3",
         f"the row has more than 4,194,304 bytes {OPEN}")]),
        ("x.csv", b'a\n1\n"' + (b"x" * 999 + b"\n") * 4_200 + b'"\n2', [("2", {"a": "1"}), ("3",
         f"the row has more than 4,194,304 bytes {OPEN}")]),
        ("x.csv", "a,b\n", [("", "the file has a header and no rows")]),
        ("x.csv", "a,b,a\n1,2,3\n", [("1", "column 'a' stands twice in the header; rename one")]),
        ("x.csv", b"," * 4097 + b"\n1\n", [("1", "the header has 4,098 columns; expected at most 4,096")]),
        ("x.csv", 'a,"b\n1,2\n', [("1", NEVER)]),
    ],
)  # fmt: skip
def test_csv_is_read_as_rfc_4180_says(tmp_path: Path, name: str, content: bytes | str, expected: Any) -> None:
    found = read(tmp_path / name, content)
    assert shown(found) == expected
    assert all(row.ends_file for row in found if isinstance(row, RefusedRow))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"1", f"the row has 1 {FIELDS}"),
        (b"1,2,3", f"the row has 3 {FIELDS}"),
        (b'1,"a"b"', QUOTE),
        (b'"1\n2"3,4', QUOTE),
        (b"a\0,2", "a NUL character at byte offset 1"),
        (b"1,caf\xe9", "not UTF-8: byte 0xe9 at byte offset 5"),
    ],
)
def test_a_bad_record_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, record: bytes, reason: str) -> None:
    found = read(tmp_path / "x.csv", b"a,b\n1,2\n" + record + b"\n3,4\n")
    after = str(4 + record.count(b"\n"))
    assert shown(found) == [("2", {"a": "1", "b": "2"}), ("3", reason), (after, {"a": "3", "b": "4"})]
    assert back(found[1]) == record


@settings(max_examples=100, deadline=None, database=None)
@given(
    content=st.lists(st.sampled_from([b"a,b", b'"', b",", b"\n", b"\r\n", b"x", b"\0", b"\xff", b'""'])).map(b"".join)
)
def test_any_bytes_of_csv_come_out(tmp_path_factory: Any, content: bytes) -> None:
    found = read(tmp_path_factory.getbasetemp() / "any.csv", b"a,b\n" + content)
    blanks = b" \r\n"  # lines of them are no rows
    assert b"".join(map(back, found)).translate(None, blanks) == content.translate(None, blanks)


# ---- a JSON array

UNREAD = "no element after it is read"
AFTER = "neither a comma nor ] follows this element, or the file breaks off behind it"
NO_JSON = "the element is no JSON, or the file breaks off in it"


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("3", "the element is of type int; expected an object"),
        ('{"a": 1,\n "a": 2}', "key 'a' stands twice in one object"),  # as on a line
    ],
)
def test_a_bad_element_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, element: str, reason: str) -> None:
    content = f"\ufeff \n[\n{ROW},\n\n{element},\n{ROW} , {ROW}\n]\n\n"
    found = read(tmp_path / "x.json", content)
    last, row = 6 + element.count("\n"), json.loads(ROW)
    good_rows = [("3 (element 1)", row), (f"{last} (element 3)", row), (f"{last} (element 4)", row)]
    assert shown(found) == [good_rows[0], ("5 (element 2)", reason), *good_rows[1:]]
    assert shown(read(tmp_path / "x.json.gz", gzip.compress(content.encode()))) == shown(found)
    assert back(found[1]).decode() == element


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        ("[]", "", "the array is empty"),
        (f"[{ROW}", "1 (element 1)", AFTER),
        (f"[{ROW} {ROW}]", "1 (element 1)", AFTER),
        (f"[{ROW},\n", "2 (element 2)", f"{NO_JSON}: expecting value at its character 1; {UNREAD}"),
        (f'[{ROW},{{"a": }}, {ROW}]', "1 (element 2)", f"{NO_JSON}: expecting value at its character 7; {UNREAD}"),
        (f'[{{"a": "{"x" * 5_000_000}"}}, {ROW}]', "1 (element 1)",
         "the element has 5,000,009 bytes; expected at most 4,194,304 (it stays in the file only)"),
        ("[" * 1_000_000, "1 (element 1)",
         f"lists and objects are nested too deeply; expected at most 100 levels; {UNREAD}"),
        (f"[{ROW}]\n{ROW}", "1", "text after the end of the array; expected one array"),
    ],
)  # fmt: skip
def test_an_array_that_is_not_read_to_its_end(tmp_path: Path, content: str, place: str, reason: str) -> None:
    found = read(tmp_path / "x.json", content)
    assert [(there, why) for there, why in shown(found) if isinstance(why, str)] == [(place, reason)]


def test_an_array_that_is_too_large_becomes_json_lines(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    content = f"[{ROW}]"
    for name, packed in (("x.json", content.encode()), ("x.json.gz", gzip.compress(content.encode()))):
        for most, count in ((len(content), 1), (len(content) - 1, 0)):
            monkeypatch.setattr(records, "MAX_ARRAY_BYTES", most)
            found = read(Path(name), packed)
            assert len(good(found)) == count
    command = "gzip -dc x.json.gz | jq -c '.[]' > x.jsonl"
    assert (
        shown(found)[0][1]
        == f"a JSON array may have at most {len(content) - 1} bytes; make JSON lines of it: {command}"
    )


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


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> bytes:
    pq.write_table(pa.table(columns), path, **options)
    return path.read_bytes()


def test_reading_parquet_leaves_no_thread_that_holds_the_file(tmp_path: Path) -> None:
    """A thread of Arrow's that lets go of a Python file during the interpreter's end aborts the process."""
    write_parquet(tmp_path / "x.parquet", {"prompt": ["a", "b"]})
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


def test_a_parquet_file_cut_or_damaged_anywhere_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    whole = write_parquet(path, {"prompt": [[{"role": "user"}]] * 3, "text": ["a", "b", "c"]}, compression="none")
    for place in range(1, len(whole), 11):
        assert read(path, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        (found,) = read(path, whole[:place])
        assert isinstance(found, RefusedRow)
        assert (found.where, found.raw) == (str(path), "")
        assert found.reason.startswith("the parquet file is cut short or damaged, no row from here on: ")


def test_a_parquet_file_damaged_in_the_middle_gives_the_rows_before(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    whole = write_parquet(
        path, {"prompt": [f"text {n}" for n in range(40)]}, row_group_size=10, compression="gzip", use_dictionary=False
    )
    start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    found = read(path, whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    assert good(found) == [{"prompt": f"text {n}"} for n in range(20)]
    assert [item.where for item in found if isinstance(item, RefusedRow)] == [f"{path}:21"]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["a", "b\0"]), "a holds a NUL character"),
        (pa.array(["a", "x" * 5_000_000]), "the row has 5,000,000 characters; expected at most 4,194,304"),
        (
            pa.Array.from_buffers(
                pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
            ),
            "not UTF-8: byte 0xff at byte offset 0 of a text",
        ),
    ],
)
def test_a_bad_parquet_row_does_not_take_its_neighbour_along(tmp_path: Path, column: Any, reason: str) -> None:
    write_parquet(tmp_path / "x.parquet", {"a": column})
    found = read(tmp_path / "x.parquet")
    assert [pair for pair in shown(found) if pair[0] == "2"] == [("2", reason)]
    assert len(good(found)) == 1


def test_parquet_without_rows_or_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(path, {"a": pa.array([], pa.string())})
    assert shown(read(path)) == [("", "the file is empty")]
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    assert shown(read(path)) == [("", "column 'a' stands twice")]
