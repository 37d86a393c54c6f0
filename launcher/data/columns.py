"""Rows in columns: those that are plainly good are taken a block at a time, only the others are looked at one by one.

What a row is and why one is refused stand in `rows`, `recipes` and `formats`. Nothing is decided differently here: a
block that arrow cannot read as exactly the columns that its first rows have, or a row that one of the masks below does
not prove good, goes their way. So both ways give equal rows, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from launcher.data.blocks import BOM, Block
from launcher.data.files import Files
from launcher.data.plain import MAX_ROW_BYTES
from launcher.data.recipes import INSTRUCTIONS, MARK, NUMBER, SOURCES
from launcher.data.written import types
from launcher.spec.algorithm import Kind
from launcher.spec.data import ROLES

# Python's notion of blanks, so that a text is empty here where it is empty there.
_BLANK = r"\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_SOME = f"[^{_BLANK}]"
_CHAT = types("answers")["messages"]
_READ = {"prompt", "question", "response", "answer", "chosen", "rejected", "messages", "data_source", "ability"}
"""Keys of rows that are read here, each text, but messages."""
_ELSE = {"reward_model", "ground_truth", "extra_info"}
"""Keys that `formats` reads, too, and whose rows go the other way."""
_ANSWERS = {"prompt": ("response", "answer"), "question": ("answer", "response")}
SMALL = 64
"""Lines of a block that is not halved any more to find the one that arrow cannot read."""


@dataclass(frozen=True)
class Shape:
    """Which columns a file has, and which of them a row is made of."""

    schema: pa.Schema
    prompt: str
    answer: str

    @property
    def texts(self) -> list[str]:
        """Every column of text, also those that nobody reads: a row with a NUL in one is refused."""
        return [name for name, of in zip(self.schema.names, self.schema.types, strict=True) if of == pa.string()]


@dataclass(frozen=True)
class Taken:
    """The rows that are plainly good, as written columns and extra_info, and where each stands in its block."""

    columns: pa.Table
    extras: pa.StructArray
    places: np.ndarray
    others: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Places of the rows that have to be looked at."""


def shape(fields: Mapping[str, pa.DataType], files: Files, kind: Kind) -> Shape | None:
    """The shape of a file with these columns; None where its rows have to be looked at one by one."""
    if kind == "mixed" or fields.keys() & _ELSE or files.format not in ("auto", "gsm8k") or files.response_key:
        return None
    if files.prompt_key not in (None, "prompt", "question"):
        return None
    for name, of in fields.items():
        plain = of == (_CHAT if name == "messages" else pa.string())
        if not plain and (name in _READ or of not in (pa.int64(), pa.float64(), pa.bool_(), pa.null())):
            return None
    found = _keys(fields, files, kind)
    if found is None:
        return None
    return Shape(pa.schema(list(fields.items())), *found)


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
    answer = next((name for name in _ANSWERS[first] if name in fields), None)
    return (first, answer) if answer in text else None


def sampled(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
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


def parsed(block: Block, shape: Shape) -> Iterator[tuple[Block, pa.Table | None]]:
    """The block in pieces with their columns, or None for pieces of at most SMALL lines that arrow cannot read so."""
    table = _parsed(block, shape)
    if table is not None or block.counted() <= SMALL:
        yield block, table
        return
    for half in block.halves():
        yield from parsed(half, shape)


def _parsed(block: Block, shape: Shape) -> pa.Table | None:
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


def taken(table: pa.Table, shape: Shape, files: Files, kind: Kind) -> Taken:
    """What the table's rows come to."""
    cell = {name: table[name].combine_chunks() for name in table.column_names}
    good = _plain_numbers(cell, table.num_rows)
    for name in shape.texts:
        good &= ~_nul(cell[name])
    good &= _size(cell, shape) <= MAX_ROW_BYTES
    made, extras, proven = _made(cell, shape, files, kind)
    good &= proven
    places, others = np.flatnonzero(good), np.flatnonzero(~good)
    columns = pa.table({name: made[name] for name in types(kind)})
    if len(others):
        columns, extras = columns.take(pa.array(places)), extras.take(pa.array(places))
    return Taken(columns, extras, places, others)


def _made(
    cell: Mapping[str, pa.Array], shape: Shape, files: Files, kind: Kind
) -> tuple[dict[str, pa.Array], pa.StructArray, np.ndarray]:
    """The written columns, extra_info, and which rows they are right for."""
    count = len(cell[shape.prompt])
    given = files.data_source or SOURCES.get(files.format)
    made = {
        "data_source": _label(cell, "data_source", count, "unknown") if given is None else pa.repeat(given, count),
        "ability": pa.repeat("math", count) if files.format == "gsm8k" else _label(cell, "ability", count, ""),
    }
    extras = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    if shape.prompt == "messages":
        return {**made, "messages": cell["messages"]}, extras, _chats(cell["messages"])
    instruction = files.instruction if files.instruction is not None else INSTRUCTIONS.get(files.format, "")
    asked = pc.binary_join_element_wise(cell[shape.prompt], instruction, " ") if instruction else cell[shape.prompt]
    answer, good = cell[shape.answer], _some(cell[shape.prompt]) & _some(cell[shape.answer])
    truth = answer
    if files.format == "gsm8k":
        truth, proven = _numbers(answer)
        good &= proven
    if kind == "answers":
        return {**made, "messages": _talk(("user", asked), ("assistant", answer))}, extras, good
    made["prompt"] = _talk(("user", asked))
    if kind == "pairs":
        good &= _some(cell["rejected"]) & _true(pc.not_equal(answer, cell["rejected"]))
        return {**made, "chosen": answer, "rejected": cell["rejected"]}, extras, good
    rule = pa.StructArray.from_arrays([pa.repeat("rule", count), truth], ["style", "ground_truth"])
    return {**made, "reward_model": rule}, extras, good


def _numbers(solution: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The number after the last mark, and where there plainly is one."""
    parts = pc.split_pattern(solution, MARK, max_splits=1, reverse=True)
    marked = _true(pc.equal(pc.list_value_length(parts), 2))
    last = pc.list_element(parts, 1) if marked.all() else _last(parts)
    bare = pc.ascii_trim_whitespace(pc.replace_substring(pc.replace_substring(last, ",", ""), "$", ""))
    return bare, marked & _true(pc.match_substring_regex(bare, f"^(?:{NUMBER})$"))


def _last(parts: pa.Array) -> pa.Array:
    """Each list's last text; null for a list that has none."""
    ends = parts.offsets.to_numpy()[1:] - 1
    ends = np.where(_true(pc.is_valid(parts)), np.maximum(ends, 0), 0)
    return parts.values.take(pa.array(ends)) if len(parts.values) else pa.nulls(len(parts), pa.string())


def _talk(*turns: tuple[str, pa.Array]) -> pa.Array:
    """Conversations of these turns, one for each row."""
    count, each = len(turns[0][1]), len(turns)
    parts = [pa.StructArray.from_arrays([pa.repeat(role, count), text], ["role", "content"]) for role, text in turns]
    if each == 1:
        turn = parts[0]
    else:  # turn by turn becomes row by row
        order = np.arange(count * each).reshape(each, count).T.ravel()
        turn = pa.concat_arrays(parts).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * each), turn)


def _chats(messages: pa.Array) -> np.ndarray:
    """Where every turn has a known role and a content, and an assistant says something."""
    turn, count = messages.flatten(), len(messages)
    role, content = turn.field("role"), turn.field("content")
    plain = _true(pc.is_in(role, pa.array(ROLES))) & _true(pc.is_valid(content)) & _true(pc.is_valid(turn))
    answers = plain & _true(pc.equal(role, "assistant")) & _some(content)
    of = pc.list_parent_indices(messages).to_numpy()
    odd, said = (np.bincount(of, weights=flags, minlength=count) for flags in (~plain | _nul(content), answers))
    return _true(pc.is_valid(messages)) & (odd == 0) & (said > 0)


def _nul(text: pa.Array) -> np.ndarray:
    """Where a NUL stands. The bytes are searched as one first: a search in each text takes ten times as long."""
    held = text.buffers()[2]
    if held is None or held.to_pybytes().find(b"\0") < 0:
        return np.zeros(len(text), bool)
    return _true(pc.match_substring(text, "\0"))


def _size(cell: Mapping[str, pa.Array], shape: Shape) -> np.ndarray:
    """Bytes of text in each row; characters are never more."""
    total = np.zeros(len(cell[shape.prompt]), np.int64)
    for name in shape.texts:
        total += pc.fill_null(pc.binary_length(cell[name]), 0).to_numpy()
    if "messages" in shape.schema.names:
        chat = cell["messages"]
        lengths = pc.fill_null(pc.binary_length(chat.flatten().field("content")), 0).to_numpy()
        of = pc.list_parent_indices(chat).to_numpy()
        total += np.bincount(of, weights=lengths, minlength=len(total)).astype(np.int64)
    return total


def _plain_numbers(cell: Mapping[str, pa.Array], count: int) -> np.ndarray:
    """Where no number is too large, or none at all."""
    good = np.ones(count, bool)
    for values in cell.values():
        if values.type == pa.float64():
            good &= _true(pc.less(pc.abs(values), 2.0**63), missing=True)
    return good


def _label(cell: Mapping[str, pa.Array], name: str, count: int, otherwise: str) -> pa.Array:
    if name not in cell or cell[name].type != pa.string():
        return pa.repeat(otherwise, count)
    return pc.if_else(pc.equal(pc.fill_null(cell[name], ""), ""), otherwise, cell[name])


def _some(text: pa.Array) -> np.ndarray:
    """Where there is a text, and more than blanks in it."""
    return _true(pc.match_substring_regex(text, _SOME))


def _true(flags: pa.Array, *, missing: bool = False) -> np.ndarray:
    made: np.ndarray = pc.fill_null(flags, missing).to_numpy(zero_copy_only=False)
    return made
