"""Rows in columns: those proven good are taken a block at a time, only the others are checked one by one.

`rows`, `known_datasets` and `formats` define what a row is and why one is refused; nothing is decided differently here.
A block that arrow cannot read as exactly the columns of its first rows, and a row that one of the masks below does not
prove good, is passed to them. So both ways give equal rows, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from launcher.data import arrays
from launcher.data.blocks import BOM, Block
from launcher.data.files import Files
from launcher.data.formats import ANSWERS
from launcher.data.known_datasets import INSTRUCTIONS, SOURCES
from launcher.data.parquet_layout import types
from launcher.data.value_checks import MAX_ROW_BYTES
from launcher.spec.algorithm import Kind

_CHAT = types("answers")["messages"]
_READ = {"prompt", "question", "response", "answer", "chosen", "rejected", "messages", "data_source", "ability"}
"""Keys of rows that are read here, each text, but messages."""
_ELSE = {"reward_model", "ground_truth", "extra_info"}
"""Keys that `formats` reads, too, and whose rows go the other way."""
SMALL = 64
"""Blocks of at most this many lines are not halved further to find the line that arrow cannot read."""


@dataclass(frozen=True)
class ColumnShape:
    """The columns of a file, and those that make up a row."""

    schema: pa.Schema
    prompt: str
    answer: str

    @property
    def texts(self) -> list[str]:
        """Every text column, even unused ones: a row with a NUL in one is refused."""
        return [name for name, of in zip(self.schema.names, self.schema.types, strict=True) if of == pa.string()]


@dataclass(frozen=True)
class GoodRows:
    """Rows proven good, as output columns and extra_info, with their positions in the block."""

    columns: pa.Table
    extras: pa.StructArray
    places: np.ndarray
    others: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions of the rows that must be checked one by one."""


def column_shape(fields: Mapping[str, pa.DataType], files: Files, kind: Kind) -> ColumnShape | None:
    """The shape of a file with these columns; None where its rows must be checked one by one."""
    if kind == "mixed" or fields.keys() & _ELSE or files.format not in ("auto", "gsm8k") or files.response_key:
        return None
    if files.prompt_key not in (None, "prompt", "question") or (files.prompt_key and files.format != "auto"):
        return None
    for name, of in fields.items():
        plain = of == (_CHAT if name == "messages" else pa.string())
        if not plain and (name in _READ or of not in (pa.int64(), pa.float64(), pa.bool_(), pa.null())):
            return None
    found = _keys(fields, files, kind)
    if found is None:
        return None
    return ColumnShape(pa.schema(list(fields.items())), *found)


def _keys(fields: Mapping[str, pa.DataType], files: Files, kind: Kind) -> tuple[str, str] | None:
    """The columns of prompt and answer (of messages alone: that, twice), each text."""
    text = {name for name, of in fields.items() if of == pa.string()}
    if files.format == "gsm8k":
        return ("question", "answer") if {"question", "answer"} <= text and kind != "pairs" else None
    if "messages" in fields and files.prompt_key is None:
        plain = kind == "answers" and fields["messages"] == _CHAT and not files.instruction
        return ("messages", "messages") if plain else None
    first = files.prompt_key or ("prompt" if "prompt" in fields else "question")
    if first not in text:
        return None
    if kind == "pairs":
        return (first, "chosen") if {"chosen", "rejected"} <= text else None
    answer = next((name for name in ANSWERS[first] if name in fields), None)
    return (first, answer) if answer in text else None


def sample_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """The columns that some rows of JSON have; one whose values differ in type has none, so that the shape has none."""
    found: dict[str, pa.DataType] = {}
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), type(None): pa.null()}
    for row in rows:
        for name, value in row.items():
            of = _CHAT if name == "messages" and isinstance(value, list) else plain.get(type(value), pa.binary())
            have = found.setdefault(name, of)
            if have == pa.null() or {have, of} == {pa.int64(), pa.float64()}:
                found[name] = of if have == pa.null() else pa.float64()
            elif of not in (have, pa.null()):
                found[name] = pa.binary()
    return {name: pa.string() if of == pa.null() else of for name, of in found.items()}


def parse_block(block: Block, shape: ColumnShape) -> Iterator[tuple[Block, pa.Table | None]]:
    """The block in pieces with their columns, or None for pieces of at most SMALL lines that arrow cannot read so."""
    table = _parsed(block, shape)
    if table is not None or block.counted() <= SMALL:
        yield block, table
        return
    for half in block.halves():
        yield from parse_block(half, shape)


def _parsed(block: Block, shape: ColumnShape) -> pa.Table | None:
    bom = block.first == 1 and block.view[: len(BOM)] == BOM
    data = block.view[len(BOM) :] if bom else block.view
    block.count, whole = _lines(data)
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    strict = pj.ParseOptions(explicit_schema=shape.schema, unexpected_field_behavior="error")
    try:
        table = pj.read_json(pa.py_buffer(data), reading, strict) if whole else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table.combine_chunks() if table is not None and len(table) == block.count and readable(table) else None


def _lines(data: memoryview) -> tuple[int, bool]:
    """How many lines there are, and whether each break between two stands between two objects.

    Inside an object no break stands so, as a comma would be missing: as many rows as lines are a row in each line.
    """
    signs = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(signs == ord("\n"))
    if len(breaks) and breaks[-1] == len(data) - 1:
        breaks = breaks[:-1]
    before = signs[breaks - 1]
    if len(breaks) and (before == ord("\r")).all():
        before = signs[breaks - 2]
    whole = (before == ord("}")).all() and (signs[breaks + 1] == ord("{")).all()
    return len(breaks) + 1, bool(whole)


def plain(table: pa.Table) -> pa.Table:
    """The same rows; text and conversations in the types that are known here."""
    for place, of in enumerate(table.schema):
        if pa.types.is_large_string(of.type) or pa.types.is_string_view(of.type):
            table = table.set_column(place, of.name, table[of.name].cast(pa.string()))
        elif of.name == "messages" and _is_chat(of.type):
            table = table.set_column(place, of.name, _chat(table[of.name].combine_chunks()))
    return table


def _is_chat(of: pa.DataType) -> bool:
    """A list of role and content, in whichever order."""
    if not pa.types.is_list(of) or not pa.types.is_struct(of.value_type):
        return False
    return {(part.name, part.type) for part in of.value_type} == {("role", pa.string()), ("content", pa.string())}


def _chat(messages: pa.Array) -> pa.Array:
    turn = messages.values
    parts = [turn.field("role"), turn.field("content")]
    turns = pa.StructArray.from_arrays(parts, ["role", "content"], mask=pc.is_null(turn))
    return pa.ListArray.from_arrays(messages.offsets, turns, mask=pc.is_null(messages))


def readable(table: pa.Table) -> bool:
    """Whether all text is UTF-8."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def take_good_rows(table: pa.Table, shape: ColumnShape, files: Files, kind: Kind) -> GoodRows:
    """The good rows of the table."""
    cell = {name: table[name].combine_chunks() for name in table.column_names}
    good = arrays.plain_numbers(cell, table.num_rows)
    for name in shape.texts:
        good &= ~arrays.nul(cell[name])
    chats = [cell[name] for name in shape.schema.names if name == "messages"]
    good &= arrays.size([cell[name] for name in shape.texts], chats, table.num_rows) <= MAX_ROW_BYTES
    made, extras, proven = _made(cell, shape, files, kind)
    good &= proven
    places, others = np.flatnonzero(good), np.flatnonzero(~good)
    columns = pa.table({name: made[name] for name in types(kind)})
    if len(others):
        columns, extras = columns.take(pa.array(places)), extras.take(pa.array(places))
    return GoodRows(columns, extras, places, others)


def _made(
    cell: Mapping[str, pa.Array], shape: ColumnShape, files: Files, kind: Kind
) -> tuple[dict[str, pa.Array], pa.StructArray, np.ndarray]:
    """The written columns, extra_info, and which rows they are right for."""
    count = len(cell[shape.prompt])
    given = files.data_source or SOURCES.get(files.format)
    made = {
        "data_source": arrays.label(cell, "data_source", count, "unknown")
        if given is None
        else pa.repeat(given, count),
        "ability": pa.repeat("math", count) if files.format == "gsm8k" else arrays.label(cell, "ability", count, ""),
    }
    extras = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    if shape.prompt == "messages":
        return {**made, "messages": cell["messages"]}, extras, arrays.chats(cell["messages"])
    instruction = files.instruction if files.instruction is not None else INSTRUCTIONS.get(files.format, "")
    asked = pc.binary_join_element_wise(cell[shape.prompt], instruction, " ") if instruction else cell[shape.prompt]
    answer, good = cell[shape.answer], arrays.some(cell[shape.prompt]) & arrays.some(cell[shape.answer])
    truth = answer
    if files.format == "gsm8k":
        truth, proven = arrays.numbers(answer)
        good &= proven
    if kind == "answers":
        return {**made, "messages": arrays.talk(("user", asked), ("assistant", answer))}, extras, good
    made["prompt"] = arrays.talk(("user", asked))
    if kind == "pairs":
        good &= arrays.some(cell["rejected"]) & arrays.true(pc.not_equal(answer, cell["rejected"]))
        return {**made, "chosen": answer, "rejected": cell["rejected"]}, extras, good
    rule = pa.StructArray.from_arrays([pa.repeat("rule", count), truth], ["style", "ground_truth"])
    return {**made, "reward_model": rule}, extras, good
