"""The layout of prepared rows: parquet with verl's columns, so that both engines read it.

    prompts   data_source, prompt [{role, content}], ability, reward_model {style, ground_truth}, extra_info
    answers   data_source, messages [{role, content}], ability, extra_info
    pairs     data_source, prompt [{role, content}], chosen, rejected, ability, extra_info
    mixed     the columns of prompts and of pairs; chosen and rejected are null where a row is a prompt

Where a row has tools, tool calls or reasoning, all files have `template_fields` too: JSON of what the chat template
reads beside roles and contents. `extra_info` holds split, index (from 0, among the rows written), and the row's own
values; its type and that of ground truths are those of the rows.
Arrow takes half a second to load: `columns`, `convert` and this file are imported late, and `reader` imports it late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from launcher.data.formats import TEMPLATE_FIELDS, template_fields
from launcher.data.rows import UnfitRow
from launcher.spec.algorithm import Kind
from launcher.spec.data import Message, Row, Text

CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_TYPES = {"prompt": CHAT, "messages": CHAT}
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "prompts": ("data_source", "prompt", "ability", "reward_model"),
    "answers": ("data_source", "messages", "ability"),
    "pairs": ("data_source", "prompt", "chosen", "rejected", "ability"),
    "mixed": ("data_source", "prompt", "chosen", "rejected", "ability", "reward_model"),
}


def schema(kind: Kind, truth: pa.DataType) -> pa.Schema:
    """The columns of rows without values of their own, whose ground truths have the type `truth`."""
    types = {**_TYPES, "reward_model": pa.struct([("style", pa.string()), ("ground_truth", truth)])}
    return pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS[kind]])


def values_of(row: Row, kind: Kind) -> dict[str, Any]:
    """The row's columns, without split and index. Raises `UnfitRow` where they cannot represent it."""
    if kind == "answers":
        row = replace(row, prompt=_demonstration_turns(row), response=None, response_extra={})
    columns: dict[str, Any] = {"data_source": row.data_source, "ability": row.ability}
    columns |= {"extra_info": row.extra_info} if row.extra_info else {}
    columns |= {TEMPLATE_FIELDS: fields} if (fields := template_fields(row)) else {}
    if kind == "answers":
        return {**columns, "messages": _chat(_turns(row.prompt))}
    columns["prompt"] = _chat(_turns(row.prompt))
    if kind != "prompts":
        columns |= {"chosen": row.response, "rejected": row.rejected}
    if kind != "pairs":
        truth = row.ground_truth if row.typed_truth is None else row.typed_truth
        columns["reward_model"] = {"style": row.style or ("model" if truth is None else "rule"), "ground_truth": truth}
    return columns


def _demonstration_turns(row: Row) -> tuple[Message, ...]:
    turns = _turns(row.prompt)
    if row.response is None:
        return turns
    if any(turn.role == "assistant" for turn in turns):
        raise UnfitRow("prompt holds assistant turns, which as messages would be imitated, too; use messages")
    return (*turns, Message("assistant", row.response, row.response_extra))


def _turns(text: Text) -> tuple[Message, ...]:
    return (Message("user", text),) if isinstance(text, str) else text


def _chat(turns: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def table(rows: Sequence[Mapping[str, Any]], of: pa.Schema | None = None) -> pa.Table:
    """Rows of `values_of` as a table of the schema `of`, by default of the narrowest types that hold the values.
    Raises `UnfitRow` where there are none."""
    types = dict(zip(of.names, of.types, strict=True)) if of else {}
    names = dict.fromkeys([*types, *(name for row in rows for name in row)])
    try:
        found = pa.table({name: pa.array([row.get(name) for row in rows], types.get(name)) for name in names})
    except (pa.ArrowException, OverflowError) as error:
        raise _differing(error) from error
    if any(map(_has_empty_struct, found.schema.types)):
        raise UnfitRow("extra_info holds an empty object, which a column cannot; leave it out")
    return found


def numbered(columns: pa.Table, split: str, start: int) -> pa.Table:
    """The columns with split and index, which goes on from `start`, in extra_info before the rows' own values."""
    count = columns.num_rows
    info = {
        "split": pa.repeat(pa.scalar(split, pa.string()), count),
        "index": pa.array(np.arange(start, start + count)),
    }
    if "extra_info" in columns.column_names:
        own = columns["extra_info"].combine_chunks()
        own_values = zip((field.name for field in own.type), own.flatten(), strict=True)
        info |= {name: values for name, values in own_values if name not in info}
        columns = columns.drop_columns("extra_info")
    return columns.append_column("extra_info", pa.StructArray.from_arrays(list(info.values()), list(info)))


def merged(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The narrowest schema that includes both. Raises `UnfitRow` where there is none."""
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except pa.ArrowException as error:
        raise _differing(error) from error


def _differing(error: Exception) -> UnfitRow:
    reason = " ".join(str(error).split())[:200]
    return UnfitRow(f"columns have other types than in the rows before ({reason}); use equal types")


def _has_empty_struct(type_: pa.DataType) -> bool:
    """Whether a type contains an empty struct, which parquet cannot store."""
    if pa.types.is_struct(type_):
        return not len(type_) or any(_has_empty_struct(field.type) for field in type_)
    return pa.types.is_list(type_) and _has_empty_struct(type_.value_type)


# ---- files written elsewhere


def fields_of(path: Path) -> frozenset[str]:
    """Names of a file's columns and of their nested fields: `reward_model.ground_truth`, `prompt[].role`. Columns of
    only nulls are left out. Raises `OSError`, or `ValueError` where it is not parquet."""
    return frozenset(name for field in pq.read_schema(path) for name in _names_of(field.name, field.type))


def _names_of(name: str, type_: pa.DataType) -> Iterator[str]:
    if pa.types.is_null(type_):
        return
    yield name
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _names_of(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        yield from _names_of(f"{name}[]", type_.value_type)


def count_rows(path: Path) -> int:
    """Number of rows by the file's footer; 0 where the file does not exist."""
    return int(pq.read_metadata(path).num_rows) if path.is_file() else 0


def join_files(paths: Sequence[Path], target: Path, schema: pa.Schema | None = None) -> None:
    """Write the rows of all files into one, in order, with the columns of `schema`, by default the union of theirs.
    Raises `UnfitRow` where the types or values of a column cannot be unified."""
    schema = schema or reduce(merged, map(pq.read_schema, paths))
    with pq.ParquetWriter(target, schema) as writer:
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches():
                writer.write_table(fitted(pa.Table.from_batches([batch]), schema))


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with all columns of `schema`, of its types; those that it lacks are null. Raises `UnfitRow`."""
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise _differing(error) from error


def move_rows(source: Path, target: Path, numbers: Collection[int]) -> None:
    """Move the rows with these numbers (from 1) from `source` to `target`; both files are written anew."""
    remaining, start = source.with_suffix(".rest"), 1
    schema = pq.read_schema(source)
    with pq.ParquetWriter(target, schema) as moved, pq.ParquetWriter(remaining, schema) as others:
        for batch in pq.ParquetFile(source).iter_batches():
            chosen = pa.array([number in numbers for number in range(start, start + len(batch))], pa.bool_())
            moved.write_batch(batch.filter(chosen))
            others.write_batch(batch.filter(pc.invert(chosen)))
            start += len(batch)
    source.unlink()  # it may be a link to the user's own file
    remaining.rename(source)
