"""Converts a chunk of plain columns by example.

What a row means is defined once, for one row: by `known_datasets`, `formats` and `parquet_layout`. That definition is
applied to an example, a row with a placeholder for each text, and the result is filled with whole columns. This is
correct if no text that is used is null or blank; any other chunk is converted row by row.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from launcher.data import parquet_layout
from launcher.data.files import Files
from launcher.data.formats import READ_KEYS, needs_each_row
from launcher.data.known_datasets import INSTRUCTIONS, MARK, NUMBER, SOURCES, solved_question
from launcher.data.reader import Block, Chunk, RowBatch
from launcher.data.rows import MAX_ROW_BYTES, RawRow, UnfitRow, parse_row
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow

_PLACEHOLDER = re.compile("\ue000(.*?)\ue001", re.DOTALL)
"""A placeholder in the example for the text of the column that it names."""
_TRUTH = "the ground truth of a solution"
"""Name of the computed column of ground truths, which no file has."""
_OPENING = np.frombuffer(b"[{ \t\n\r\f\v\xe2\xe3\xc2", np.uint8)
"""First bytes of texts that may be JSON after leading blanks."""
_UNREAD_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.null())

Cells = dict[str, pa.Array]


def convert_columns(chunk: Chunk, files: Files, kind: Kind, name: str) -> pa.Table | None:
    """The columns to write, without extra_info; None where the rows must be converted one by one. A null column has no
    type."""
    table = None if kind == "mixed" or files.format in ("hh", "math") else _table_of(chunk)
    if table is None or not len(table) or not _is_sound(table):
        return None
    try:
        cells = _text_cells(table, files)
        values = _example_values(cells, files, kind, name)
    except UnfitRow:
        return None
    used = [cells[name] for name in _placeholders(values)]
    if not all(map(_all_meaningful, used)):
        return None
    if kind == "pairs" and pc.any(pc.equal(*used[-2:])).as_py():  # chosen and rejected are the last two
        return None
    schema = parquet_layout.schema(kind, pa.string())
    return pa.table({field.name: _fill(values[field.name], field.type, cells, len(table)) for field in schema})


def _table_of(chunk: Chunk) -> pa.Table | None:
    """All rows of a chunk as a table; None where the chunk is not columnar, or not all rows can be read so."""
    if isinstance(chunk, Block):
        return _table_of_lines(chunk)
    if not isinstance(chunk, RowBatch):
        return None
    table = pa.Table.from_batches([chunk.columns])
    for index, column in enumerate(table.schema):
        if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
            table = table.set_column(index, column.name, table[column.name].cast(pa.string()))
    return table


def _table_of_lines(block: Block) -> pa.Table | None:
    """The lines as arrow parses them; None unless each of them is an object."""
    # If all lines end with }, as many rows as lines mean one row per line: an object with texts and numbers alone, as
    # they are read here, has no other }. Arrow itself crashes where the first row is `null`.
    lines = block.data.rstrip(b"\r\n")
    codes = np.frombuffer(lines, np.uint8)
    ends = np.append(np.flatnonzero(codes == ord("\n")), len(codes)) - 1
    if not lines or not (codes[ends - (codes[ends] == ord("\r"))] == ord("}")).all():
        return None
    first = parse_row(block.name, lines.split(b"\n", 1)[0])
    if not isinstance(first, RawRow):
        return None
    # Without explicit types arrow parses texts that look like timestamps.
    texts = pa.schema([(key, pa.string()) for key, value in first.values.items() if isinstance(value, str)])
    options = pj.ReadOptions(use_threads=False, block_size=len(block.data) + 1)
    try:
        table = pj.read_json(pa.py_buffer(block.data), options, pj.ParseOptions(explicit_schema=texts))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table if len(table) == len(ends) else None


def _text_cells(table: pa.Table, files: Files) -> Cells:
    """The text columns. Raises `UnfitRow` where other columns are read, or one may change what a row means."""
    cells = {name: table[name].combine_chunks() for name in table.column_names if table[name].type == pa.string()}
    others = set(table.column_names) - cells.keys()
    unread = not others & {*READ_KEYS, files.prompt_key, files.response_key}
    if not unread or any(table[name].type not in _UNREAD_TYPES for name in others):
        raise UnfitRow("it has other columns than texts")
    if any(map(needs_each_row, table.column_names)) or any("\ue000" in name or "\ue001" in name for name in cells):
        raise UnfitRow("a column changes what its rows mean")
    if "input" in cells and "instruction" not in cells:
        raise UnfitRow("prompts may hold their input")
    return cells


def _example_values(cells: Cells, files: Files, kind: Kind, name: str) -> dict[str, Any]:
    """The prepared values of an example row with a placeholder for each text. Adds the ground truths of solutions to
    `cells`; raises `UnfitRow` where a solution has none, and where the row cannot be used."""
    example: dict[str, Any] = {name: f"\ue000{name}\ue001" for name in cells}
    if files.format == "gsm8k":
        if files.prompt_key or not {"question", "answer"} <= cells.keys():
            raise UnfitRow("it has other keys")
        cells[_TRUTH] = _final_numbers(cells["answer"])
        instruction = INSTRUCTIONS[files.format] if files.instruction is None else files.instruction
        source = files.data_source or example.get("data_source") or SOURCES[files.format]
        example = solved_question(example["question"], instruction, example["answer"], f"\ue000{_TRUTH}\ue001")
        files = replace(files, format="auto", instruction="", data_source=source)
    row = files.row(RawRow(f"{name}:1", example, None), kind)
    if isinstance(row, RefusedRow) or row.extra_info:
        raise UnfitRow("its rows are not alike")
    return parquet_layout.values_of(row, kind)


def _final_numbers(solutions: pa.Array) -> pa.Array:
    """`known_datasets.number` of the text after each last mark. Raises `UnfitRow` where a solution has none."""
    parts = pc.split_pattern(solutions, MARK, max_splits=1, reverse=True)
    if not pc.all(pc.equal(pc.list_value_length(parts), 2), skip_nulls=False).as_py():
        raise UnfitRow("it has no mark")
    last = pc.replace_substring_regex(pc.list_element(parts, 1), "[,$]", "")
    numbers = pc.utf8_trim_whitespace(last)
    if not pc.all(pc.match_substring_regex(numbers, f"^(?:{NUMBER})$")).as_py():
        raise UnfitRow("it has no number")
    return numbers


def _placeholders(value: Any) -> list[str]:
    """Names of the columns whose placeholders an example's value contains."""
    if isinstance(value, str):
        return _PLACEHOLDER.findall(value)
    parts = value.values() if isinstance(value, dict) else value or ()
    return [name for part in parts for name in _placeholders(part)]


def _fill(value: Any, of: pa.DataType, cells: Cells, count: int) -> pa.Array:
    """An example's value as a column of `count` rows: its placeholders are replaced by the texts of `cells`."""
    if value is None:
        return pa.nulls(count)
    if isinstance(value, dict):
        return pa.StructArray.from_arrays(
            [_fill(value[f.name], f.type, cells, count) for f in of], [f.name for f in of]
        )
    if isinstance(value, list):
        turns = pa.concat_arrays([_fill(turn, of.value_type, cells, count) for turn in value])
        row_by_row = np.arange(count * len(value)).reshape(len(value), count).T.ravel()
        ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(value))
        return pa.ListArray.from_arrays(ends, turns.take(pa.array(row_by_row)) if len(value) > 1 else turns)
    parts = _PLACEHOLDER.split(value)  # literal, column, literal, column, ..., literal
    texts = [cells[part] if place % 2 else pa.scalar(part, of) for place, part in enumerate(parts) if part]
    if not any(isinstance(text, pa.Array) for text in texts):
        return pa.repeat(pa.scalar(value, of), count)
    return texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, "")


def _is_sound(table: pa.Table) -> bool:
    """Whether all columns, unused ones too, hold only what `rows.check` and the JSON parser accept."""
    size = 0
    try:
        table.validate(full=True)  # UTF-8
    except pa.ArrowInvalid:
        return False
    for column in table.columns:
        if column.type == pa.float64() and not pc.all(pc.less(pc.abs(column.drop_null()), 2.0**63)).as_py():
            return False
        if column.type == pa.string():
            size += pc.max(pc.binary_length(column)).as_py() or 0
            # All bytes at once: a search for NUL in each text is ten times slower.
            data = [np.frombuffer(texts, np.uint8) for part in column.chunks if (texts := part.buffers()[2])]
            if any(codes.min(initial=1) == 0 for codes in data):
                return False
    return size <= MAX_ROW_BYTES


def _all_meaningful(text: pa.Array) -> bool:
    """Whether no text is null, blank, or may be JSON."""
    if text.null_count or pc.any(pc.or_(pc.equal(text, ""), pc.utf8_is_space(text))).as_py():
        return False
    _, offsets, characters = text.buffers()
    starts = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text)]
    if not np.isin(np.frombuffer(characters, np.uint8)[starts], _OPENING).any():
        return True
    return not pc.any(pc.match_substring_regex(text, r"^\s*[\[{]")).as_py()
