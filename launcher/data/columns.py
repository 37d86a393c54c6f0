"""Rows in columns: a chunk of rows that are all proven good is converted at once; any other is left to the row reader.

`rows`, `known_datasets` and `formats` define what a row is and why one is refused; nothing is decided differently here.
A chunk that arrow cannot read as exactly the columns of its file's first rows, or with a row that a check below does
not prove good, is passed to them. So both ways give equal rows, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from launcher.data.chunks import Block, Chunk, ReadRows, RowBatch
from launcher.data.files import Files
from launcher.data.formats import ANSWERS, MEANING_KEYS
from launcher.data.known_datasets import INSTRUCTIONS, MARK, NUMBER, SOURCES
from launcher.data.parquet_layout import CHAT, types
from launcher.data.rows import BOM, MAX_ROW_BYTES, RawRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import NO_SOURCE, ROLES

_READ = {"prompt", "question", "response", "answer", "completion", "chosen", "rejected", "messages"}
_READ |= {"data_source", "ability"}
"""Keys of rows that are read here, each text, but messages."""
_NOT_READ = {"reward_model", "ground_truth", "extra_info", *MEANING_KEYS}
"""Keys that only `formats` reads."""
_SAMPLE = 100
"""Rows that show a file's columns."""
# Python's notion of blanks, so that a text is empty here where it is empty there.
_BLANK = r"\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"

Cells = Mapping[str, pa.Array]


@dataclass(frozen=True)
class ColumnShape:
    """The columns of a file, and those that make up a row."""

    schema: pa.Schema
    prompt: str
    answer: str


def chunk_types(chunk: Chunk) -> dict[str, pa.DataType]:
    """The columns of a chunk, of lines as far as its first ones show; none where rows are read one by one."""
    if isinstance(chunk, Block):
        return _types_of(row.values for row in islice(chunk.rows(), _SAMPLE) if isinstance(row, RawRow))
    if isinstance(chunk, ReadRows):
        return {}
    schema = _batch_table(chunk).schema
    return dict(zip(schema.names, schema.types, strict=True))


def _types_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Empty where no type fits; of a column with several types it may be one, whose rows then do not parse."""
    try:
        inferred = pa.infer_type(list(rows))
    except (pa.ArrowException, OverflowError, ValueError):
        return {}
    if not pa.types.is_struct(inferred):
        return {}
    replaced = {field.name: pa.string() for field in inferred if field.type == pa.null()}
    replaced |= {field.name: CHAT for field in inferred if field.name == "messages" and _is_chat(field.type)}
    return {field.name: replaced.get(field.name, field.type) for field in inferred}


def column_shape(fields: Mapping[str, pa.DataType], files: Files, kind: Kind) -> ColumnShape | None:
    """The shape of a file with these columns; None where its rows must be read one by one."""
    if kind == "mixed" or fields.keys() & _NOT_READ or files.format not in ("auto", "gsm8k") or files.response_key:
        return None
    if files.prompt_key not in (None, "prompt", "question") or (files.prompt_key and files.format != "auto"):
        return None
    for name, of in fields.items():
        plain = of == (CHAT if name == "messages" else pa.string())
        if not plain and (name in _READ or of not in (pa.int64(), pa.float64(), pa.bool_(), pa.null())):
            return None
    keys = _keys(fields, files, kind)
    return keys and ColumnShape(pa.schema(list(fields.items())), *keys)


def _keys(fields: Mapping[str, pa.DataType], files: Files, kind: Kind) -> tuple[str, str] | None:
    """The columns of prompt and answer (of messages alone: that, twice), each text."""
    text = {name for name, of in fields.items() if of == pa.string()}
    if files.format == "gsm8k":
        return ("question", "answer") if {"question", "answer"} <= text and kind != "pairs" else None
    if "messages" in fields and files.prompt_key is None:
        return ("messages", "messages") if kind == "answers" and not files.instruction else None
    first = files.prompt_key or ("prompt" if "prompt" in fields else "question")
    if first not in text:
        return None
    if kind == "pairs":
        return (first, "chosen") if {"chosen", "rejected"} <= text else None
    answer = next((name for name in ANSWERS[first] if name in fields), None)
    return (first, answer) if answer in text else None


def good_table(chunk: Chunk, shape: ColumnShape, files: Files, kind: Kind) -> pa.Table | None:
    """The columns to write, without extra_info; None where not every row is proven good."""
    if isinstance(chunk, ReadRows):
        return None
    table = _parsed(chunk, shape) if isinstance(chunk, Block) else _batch_table(chunk)
    if table is None or not _is_utf8(table):
        return None
    cells = {name: table[name].combine_chunks() for name in table.column_names}
    written = _written(cells, shape, files, kind) if _sound(cells) else None
    return None if written is None else pa.table({name: written[name] for name in types(kind)})


# ---- reading


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
    return table if table is not None and len(table) == block.count else None


def _lines(data: memoryview) -> tuple[int, bool]:
    """How many lines there are, and whether they begin and end as objects do, at each break between two as well.

    Inside an object no break stands so, as a comma would be missing: as many rows as lines are a row in each line.
    Anything else is not given to pyarrow, which crashes where the first row is `null`.
    """
    signs = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(signs == ord("\n"))
    if len(breaks) and breaks[-1] == len(data) - 1:
        breaks = breaks[:-1]
    before = signs[breaks - 1]
    if len(breaks) and (before == ord("\r")).all():
        before = signs[breaks - 2]
    whole = (before == ord("}")).all() and (signs[breaks + 1] == ord("{")).all()
    ends = bytes(data[:1]) + bytes(data[-3:]).rstrip()[-1:]
    return len(breaks) + 1, bool(whole) and ends == b"{}"


def _batch_table(batch: RowBatch) -> pa.Table:
    """Its rows, with text and conversations in the types that are known here."""
    table = pa.Table.from_batches([batch.columns])
    for place, of in enumerate(table.schema):
        if pa.types.is_large_string(of.type) or pa.types.is_string_view(of.type):
            table = table.set_column(place, of.name, table[of.name].cast(pa.string()))
        elif of.name == "messages" and _is_chat(of.type):
            messages = table[of.name].combine_chunks()
            turn = messages.values
            parts = [turn.field("role"), turn.field("content")]
            turns = pa.StructArray.from_arrays(parts, ["role", "content"], mask=pc.is_null(turn))
            chats = pa.ListArray.from_arrays(messages.offsets, turns, mask=pc.is_null(messages))
            table = table.set_column(place, of.name, chats)
    return table


def _is_chat(of: pa.DataType) -> bool:
    """A list of role and content, in whichever order."""
    if not pa.types.is_list(of) or not pa.types.is_struct(of.value_type):
        return False
    return {(part.name, part.type) for part in of.value_type} == {("role", pa.string()), ("content", pa.string())}


# ---- checks of a whole chunk


def _is_utf8(table: pa.Table) -> bool:
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _sound(cells: Cells) -> bool:
    """Whether every row, its unused columns too, is short enough and has no NUL and no number that is out of range."""
    size = np.zeros(len(next(iter(cells.values()))), np.int64)
    for values in cells.values():
        if values.type == pa.float64() and not _all(pc.less(pc.abs(pc.fill_null(values, 0.0)), 2.0**63)):
            return False
        if values.type not in (pa.string(), CHAT):
            continue
        text = values.flatten().field("content") if values.type == CHAT else values
        if _has_nul(text):
            return False
        lengths = pc.fill_null(pc.binary_length(text), 0).to_numpy()
        if values.type == CHAT:
            of_row = pc.list_parent_indices(values).to_numpy()
            lengths = np.bincount(of_row, weights=lengths, minlength=len(size)).astype(np.int64)
        size += lengths
    return bool(size.max(initial=0) <= MAX_ROW_BYTES)


def _has_nul(text: pa.Array) -> bool:
    """The bytes are searched at once first: a search per text takes ten times as long."""
    data = text.buffers()[2]
    if data is None or data.to_pybytes().find(b"\0") < 0:
        return False
    return bool(pc.any(pc.match_substring(text, "\0")).as_py())


def _all(flags: pa.Array) -> bool:
    """Whether all are true; null is not."""
    return pc.all(flags, skip_nulls=False).as_py() is True


def _no_blanks(text: pa.Array) -> bool:
    return _all(pc.match_substring_regex(text, f"[^{_BLANK}]"))


def _good_chats(messages: pa.Array) -> bool:
    """Whether every turn has a known role and a content, and every chat an answer; no user's or assistant's turn is
    blank."""
    turn = messages.flatten()
    role, content = turn.field("role"), turn.field("content")
    known = pc.and_(pc.is_in(role, pa.array(ROLES)), pc.and_(pc.is_valid(content), pc.is_valid(turn)))
    speaks = pc.is_in(role, pa.array(["user", "assistant"]))
    if not (_all(pc.is_valid(messages)) and _all(known) and _no_blanks(content.filter(speaks))):
        return False
    answers = pc.list_parent_indices(messages).filter(pc.equal(role, "assistant"))
    return len(pc.unique(answers)) == len(messages)


# ---- what is written


def _written(cells: Cells, shape: ColumnShape, files: Files, kind: Kind) -> dict[str, pa.Array] | None:
    """The written columns; None where not every row is good."""
    prompt, answer = cells[shape.prompt], cells[shape.answer]
    source = files.data_source or SOURCES.get(files.format)
    math = files.format == "gsm8k"
    written = {
        "data_source": pa.repeat(source, len(prompt)) if source else _label(cells, "data_source", prompt, NO_SOURCE),
        "ability": pa.repeat("math", len(prompt)) if math else _label(cells, "ability", prompt, ""),
    }
    if shape.prompt == "messages":
        return {**written, "messages": prompt} if _good_chats(prompt) else None
    truth = _numbers(answer) if math else answer
    if truth is None or not (_no_blanks(prompt) and _no_blanks(answer)):
        return None
    instruction = files.instruction if files.instruction is not None else INSTRUCTIONS.get(files.format, "")
    asked = pc.binary_join_element_wise(prompt, instruction, " ") if instruction else prompt
    if kind == "answers":
        return {**written, "messages": _chats(("user", asked), ("assistant", answer))}
    written["prompt"] = _chats(("user", asked))
    if kind == "prompts":
        rule = pa.StructArray.from_arrays([pa.repeat("rule", len(truth)), truth], ["style", "ground_truth"])
        return {**written, "reward_model": rule}
    rejected = cells["rejected"]
    if not (_no_blanks(rejected) and _all(pc.not_equal(answer, rejected))):
        return None
    return {**written, "chosen": answer, "rejected": rejected}


def _numbers(solution: pa.Array) -> pa.Array | None:
    """The number after the last marker; None where not every row clearly has one."""
    parts = pc.split_pattern(solution, MARK, max_splits=1, reverse=True)
    if not _all(pc.equal(pc.list_value_length(parts), 2)):
        return None
    last = pc.replace_substring(pc.replace_substring(pc.list_element(parts, 1), ",", ""), "$", "")
    numbers = pc.ascii_trim_whitespace(last)
    return numbers if _all(pc.match_substring_regex(numbers, f"^(?:{NUMBER})$")) else None


def _chats(*turns: tuple[str, pa.Array]) -> pa.Array:
    """Conversations of these turns, one for each row."""
    count, each = len(turns[0][1]), len(turns)
    parts = [pa.StructArray.from_arrays([pa.repeat(role, count), text], ["role", "content"]) for role, text in turns]
    order = np.arange(count * each).reshape(each, count).T.ravel()  # turn by turn becomes row by row
    turn = parts[0] if each == 1 else pa.concat_arrays(parts).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * each), turn)


def _label(cells: Cells, name: str, like: pa.Array, otherwise: str) -> pa.Array:
    if name not in cells or cells[name].type != pa.string():
        return pa.repeat(otherwise, len(like))
    return pc.if_else(pc.equal(pc.fill_null(cells[name], ""), ""), otherwise, cells[name])
