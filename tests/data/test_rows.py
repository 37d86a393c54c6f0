"""Reading files: nothing raises, nothing is lost, and every refusal names its place and reason."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.data import chunks
from launcher.data.chunks import read_rows
from launcher.data.rows import RawRow
from launcher.spec.data import RefusedRow

GOOD = b'{"prompt": "a"}'


def read(path: Path, content: bytes | None = None) -> list[RawRow | RefusedRow]:
    if content is not None:
        path.write_bytes(content)
    return list(read_rows(str(path)))


def refusals(found: list[RawRow | RefusedRow], folder: Path) -> list[tuple[str, str]]:
    return [(item.where.removeprefix(f"{folder}/"), item.reason) for item in found if isinstance(item, RefusedRow)]


def good(found: list[RawRow | RefusedRow]) -> list[dict[str, Any]]:
    return [item.values for item in found if isinstance(item, RawRow)]


def back(refused: RefusedRow) -> bytes:
    return refused.raw.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "invalid JSON at column 8: expecting ',' delimiter"),
        (b"{'a': 1}", "invalid JSON at column 2: expecting property name enclosed in double quotes"),
        (b"nonsense", "invalid JSON at column 1: expecting value"),
        (b'{"a": 1} {"b": 2}', "invalid JSON at column 10: extra data"),  # two objects on one line
        (b'{"a": "\t"}', "invalid JSON at column 8: invalid control character at"),  # a tab must be written \t
        (b"[1, 2]", "the line is of type list; expected one object on each line"),
        (b"null", "the line is of type null; expected one object on each line"),
        (b'"text"', "the line is of type text; expected one object on each line"),
        (b"3", "the line is of type int; expected one object on each line"),
        (b'{"a": "caf\xe9"}', "not UTF-8: byte 0xe9 at byte offset 10"),  # Latin-1
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8: byte 0xed at byte offset 7"),  # a surrogate, encoded
        (b'{"a": "x\0y"}', "a NUL character at byte offset 8"),
        (b"\0\0\0", "a NUL character at byte offset 0"),  # the hole that a power cut leaves
        (rb'{"a": ["x", "\u0000"]}', "a[1] holds a NUL character"),
        (rb'{"a\u0000": 1}', r"'a\x00' holds a NUL character"),  # in a key
        (rb'{"messages": [{"content": "ab\ud800"}]}', "messages[0].content holds a lone surrogate at character 2"),
        (rb'{"a": "\udc80"}', "a holds a lone surrogate at character 0"),
        (
            b'{"a": 1, "b": {"c": 1, "c": 2}}',
            "key 'c' stands twice in one object",
        ),  # json would keep one and say nothing
        (b'{"a": NaN}', "NaN is no JSON number; use null"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number; use null"),
        (b'{"a": 1e999}', "the number '1e999' is too large; write it as text"),  # json makes it infinite
        (
            b'{"a": 18446744073709551616}',
            "the whole number '18446744073709551616' does not fit 64 bits; write it as text would",
        ),
        (b'{"a": %s}' % (b"7" * 5000), f"the whole number '{'7' * 26}... does not fit 64 bits; write it as text would"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "lists and objects are nested too deeply; expected at most 100 levels"),
        (b"[" * 100_000, "lists and objects are nested too deeply; expected at most 100 levels"),
        (
            b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "lists and objects are nested too deeply; expected at most 100 levels",
        ),
    ],
)
def test_a_bad_line_is_refused_whole_and_its_neighbours_are_read(tmp_path: Path, line: bytes, reason: str) -> None:
    found = read(tmp_path / "x.jsonl", b"\n".join([GOOD, line, GOOD]) + b"\n")
    assert refusals(found, tmp_path) == [("x.jsonl:2", reason)]
    assert good(found) == [{"prompt": "a"}, {"prompt": "a"}]
    assert isinstance(found[1], RefusedRow)
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
    found = read(tmp_path / "x.jsonl", content)
    assert refusals(found, tmp_path) == []
    assert good(found) == values


def test_a_10_mb_line_is_refused_unparsed_and_kept_whole(tmp_path: Path) -> None:
    line = b'{"prompt": "' + b"x" * 10_000_000 + b'"}'
    found = read(tmp_path / "x.jsonl", GOOD + b"\n" + line + b"\n" + GOOD)
    assert refusals(found, tmp_path) == [("x.jsonl:2", "the line has 10,000,014 bytes; expected at most 4,194,304")]
    assert isinstance(found[1], RefusedRow)
    assert back(found[1]) == line
    assert len(good(found)) == 2


@pytest.mark.parametrize(("more", "refused"), [(0, 0), (1, 1)])
def test_the_longest_line_is_read_and_one_byte_more_is_not(tmp_path: Path, more: int, refused: int) -> None:
    line = b'{"a": "' + b"x" * (4 * 2**20 - 9 + more) + b'"}'
    assert len(refusals(read(tmp_path / "x.jsonl", line), tmp_path)) == refused


def test_a_line_beyond_what_memory_should_hold_stays_in_its_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "MAX_KEPT_BYTES", 5_000_000)
    found = read(tmp_path / "x.jsonl", b"x" * 6_000_000 + b"\n" + GOOD)
    assert isinstance(found[0], RefusedRow)
    assert found[0].reason.endswith("(too long to set aside: it stays in the file only)")
    assert found[0].raw == ""
    assert good(found) == [{"prompt": "a"}]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.jsonl", b"", "the file is empty"),
        ("x.parquet", b"", "the file is empty"),
        ("x.jsonl.gz", gzip.compress(b"", mtime=0), "the file is empty"),
        ("x.txt", b"a,b", "the ending of 'x.txt' is not known"),
        ("x.parquet", b"no parquet at all", "the parquet file is cut short or damaged"),
    ],
)
def test_a_file_without_rows(tmp_path: Path, monkeypatch: Any, name: str, content: bytes, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    found = read(Path(name), content)
    assert [(item.where, item.reason[: len(reason)]) for item in found if isinstance(item, RefusedRow)] == [
        (name, reason)
    ]
    assert len(found) == 1


def test_blank_lines_are_no_rows_wherever_a_block_ends(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 64)
    file = tmp_path / "x.jsonl"
    for blanks in range(130):
        file.write_bytes(b'{"a": 1}\n' + b" \n" * (blanks % 40) + b'{"a": 2}' + b"\n" * min(blanks, 60))
        places = [(row.where, isinstance(row, RawRow)) for row in read_rows(str(file))]
        assert places == [(f"{file}:{number}", True) for number in (1, 2 + blanks % 40)]


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    assert refusals(read(tmp_path / "folder.jsonl"), tmp_path) == [
        ("folder.jsonl", "cannot be read: is a folder, not a file")
    ]
    missing = [("x.jsonl", "cannot be read: no such file or directory")]
    assert refusals(read(tmp_path / "x.jsonl"), tmp_path) == missing
    assert [item.where for item in read_rows("a\0b.jsonl")] == ["a\0b.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(GOOD)
    path.chmod(0)
    assert refusals(read(path), tmp_path) == [("x.jsonl", "cannot be read: permission denied")]


# ---- gzip


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl"])
def test_gzip_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    assert good(read(tmp_path / name, gzip.compress(GOOD + b"\n" + GOOD))) == [{"prompt": "a"}] * 2


def test_a_name_that_says_gzip_may_hold_plain_text(tmp_path: Path) -> None:
    assert good(read(tmp_path / "x.jsonl.gz", GOOD)) == [{"prompt": "a"}]


def test_a_gzip_file_cut_anywhere_gives_the_lines_before_the_cut(tmp_path: Path) -> None:
    lines = [b'{"n": %d, "text": "%s"}' % (n, os.urandom(20).hex().encode()) for n in range(50)]
    whole = gzip.compress(b"\n".join(lines))
    for cut in range(2, len(whole), 7):
        found = read(tmp_path / "x.jsonl.gz", whole[:cut])
        *before, last = found
        assert isinstance(last, RefusedRow)
        assert last.where.endswith(f"x.jsonl.gz:{len(found)}")
        assert last.reason.startswith("the file breaks off in this line: compressed file ended before")
        assert good(before) == [json.loads(line) for line in lines[: len(before)]]
        assert len(before) == len(lines) or lines[len(before)].startswith(back(last))  # the half line is kept too


def test_a_damaged_gzip_file_never_raises(tmp_path: Path) -> None:
    whole = gzip.compress(b"\n".join([GOOD] * 50))
    for place in range(2, len(whole)):
        found = read(tmp_path / "x.jsonl.gz", whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert found


# ---- parquet


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> bytes:
    pq.write_table(pa.table(columns), path, **options)
    return path.read_bytes()


def test_parquet_rows_are_plain_python(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(path, {"prompt": [[{"role": "user", "content": "a"}], None], "n": [1, 2], "x": [0.5, None]})
    assert read(path) == [
        RawRow(f"{path}:1", {"prompt": [{"role": "user", "content": "a"}], "n": 1, "x": 0.5}, None),
        RawRow(f"{path}:2", {"prompt": None, "n": 2, "x": None}, None),
    ]


def test_reading_parquet_leaves_no_thread_that_holds_the_file(tmp_path: Path) -> None:
    """A thread of Arrow's that lets go of a Python file during the interpreter's end aborts the process."""
    write_parquet(tmp_path / "x.parquet", {"prompt": ["a", "b"]})
    code = """
import os, sys, pyarrow.parquet
from launcher.data.chunks import read_rows
before = len(os.listdir("/proc/self/task"))
next(iter(read_rows(sys.argv[1])))
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.parquet"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


def test_a_cut_parquet_file_gives_no_row_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    whole = write_parquet(path, {"prompt": ["a", "b"]})
    for cut in range(1, len(whole)):
        (found,) = read(path, whole[:cut])
        assert isinstance(found, RefusedRow)
        assert (found.where, found.raw) == (str(path), "")
        assert found.reason.startswith("the parquet file is cut short or damaged, no row from here on: ")


def test_a_parquet_file_damaged_anywhere_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    whole = write_parquet(path, {"prompt": [[{"role": "user"}]] * 3, "text": ["a", "b", "c"]}, compression="none")
    for place in range(0, len(whole), 3):
        assert read(path, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])


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
        (pa.array([1.0, float("nan")]), "a is nan; expected a finite number or null"),
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
    assert refusals(found, tmp_path) == [("x.parquet:2", reason)]
    assert len(good(found)) == 1


def test_parquet_without_rows_or_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(path, {"a": pa.array([], pa.string())})
    assert refusals(read(path), tmp_path) == [("x.parquet", "the file is empty")]
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    assert refusals(read(path), tmp_path) == [("x.parquet", "column 'a' stands twice")]


# ---- any bytes

LINES = st.one_of(
    st.binary(max_size=30).filter(lambda line: b"\n" not in line),
    st.text(max_size=30).map(lambda text: json.dumps({"prompt": text}).encode()),
    st.sampled_from([b"", b"\r", GOOD, b"[", b"\xef\xbb\xbf" + GOOD, rb'{"a": "\ud800"}', b'{"a": NaN}']),
)


@settings(max_examples=300, deadline=None, database=None)
@given(content=st.one_of(st.binary(), st.lists(LINES).map(b"\n".join)))
def test_any_bytes_in_is_out_plus_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    content = content.lstrip(b"\x1fP")  # what begins like gzip or parquet is another test's
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    found = read(path, content)
    if not lines:
        assert [item.reason for item in found if isinstance(item, RefusedRow)] == ["the file is empty"]
        return
    assert len(found) == len(lines)
    for item, (number, line) in zip(found, lines, strict=True):
        assert item.where == f"{path}:{number}"
        assert (back(item) if isinstance(item, RefusedRow) else item.line) == line
