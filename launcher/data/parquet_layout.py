"""The layout of prepared rows: parquet with verl's columns, so that both engines read it.

    prompts   data_source, prompt [{role, content}], ability, reward_model {style, ground_truth}, extra_info
    answers   data_source, messages [{role, content}], ability, extra_info
    pairs     data_source, prompt [{role, content}], chosen, rejected, ability, extra_info
    mixed     the columns of prompts and of pairs; chosen and rejected are null where a row is a prompt

Where a row has tools, tool calls or reasoning, all files have `template_fields` too: JSON of what the chat template
reads beside roles and contents. `extra_info` holds split, index (from 0, among the rows written), and the row's own
values.
Arrow takes half a second to load: `columns`, `convert` and this file are imported late, and `reader` imports it late.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
_REWARD_MODEL = pa.struct([("style", pa.string()), ("ground_truth", pa.string())])
_TYPES = {"prompt": CHAT, "messages": CHAT, "reward_model": _REWARD_MODEL}
TRUTH = "reward_model.ground_truth"
"""Key in extra_info of a ground truth that is not text; the ground truth's column takes its type."""
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "prompts": ("data_source", "prompt", "ability", "reward_model"),
    "answers": ("data_source", "messages", "ability"),
    "pairs": ("data_source", "prompt", "chosen", "rejected", "ability"),
    "mixed": ("data_source", "prompt", "chosen", "rejected", "ability", "reward_model"),
}


class Wider(Exception):
    """A row does not fit the columns: writing starts again with this type of `extra_info`, and with `template_fields`
    if `templated`."""

    def __init__(self, extra: pa.StructType, templated: bool) -> None:
        self.extra, self.templated = extra, templated


def types(kind: Kind, templated: bool = False) -> dict[str, pa.DataType]:
    """Each column's arrow type, without extra_info."""
    return {name: _TYPES.get(name, pa.string()) for name in (*COLUMNS[kind], *[TEMPLATE_FIELDS] * templated)}


def values_of(row: Row, kind: Kind) -> dict[str, Any]:
    """The row's columns, without extra_info. Raises `UnfitRow` where they cannot represent it."""
    if kind == "answers":
        row = replace(row, prompt=_demonstration_turns(row), response=None, response_extra={})
    columns: dict[str, Any] = {"data_source": row.data_source, "ability": row.ability}
    columns[TEMPLATE_FIELDS] = template_fields(row)
    if kind == "answers":
        return {**columns, "messages": _chat(_turns(row.prompt))}
    columns["prompt"] = _chat(_turns(row.prompt))
    if kind != "prompts":
        columns |= {"chosen": row.response, "rejected": row.rejected}
    if kind != "pairs":
        truth = row.ground_truth
        style = row.style or ("model" if truth is None else "rule")
        columns["reward_model"] = {"style": style, "ground_truth": truth}
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


def table(rows: Sequence[dict[str, Any]], kind: Kind, templated: bool) -> Any:
    """Rows of `values_of` as a table."""
    return pa.table({name: pa.array([row[name] for row in rows], of) for name, of in types(kind, templated).items()})


def widened(have: Any, extras: Sequence[Mapping[str, Any]]) -> Any:
    """The narrowest extension of type `have` that takes `extras`, too. Raises `UnfitRow` where there is none."""
    rows = [dict(extra) for extra in extras]
    try:
        inferred = pa.infer_type(rows)
        wider = merged(have, inferred) if len(inferred) else have
        pa.array(rows, wider)  # inference looks at the first rows only
        if _has_empty_struct(wider):
            raise UnfitRow("extra_info holds an empty object, which a column cannot; leave it out")
    except (pa.ArrowException, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnfitRow(f"extra_info has other types than in the rows before ({reason}); use equal types") from error
    return wider


def _has_empty_struct(type_: pa.DataType, depth: int = 0) -> bool:
    """Whether a type contains an empty struct, which parquet cannot store, below the top level."""
    if pa.types.is_struct(type_):
        return (depth > 0 and not len(type_)) or any(_has_empty_struct(field.type, depth + 1) for field in type_)
    return pa.types.is_list(type_) and _has_empty_struct(type_.value_type, depth + 1)


def merged(one: Any, other: Any) -> Any:
    """The narrowest struct type that includes both. Raises `pyarrow.ArrowTypeError` where there is none."""
    schemas = [pa.schema([("extra", type_)]) for type_ in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type


def numbered(columns: Any, extras: Any, split: str, start: int) -> Any:
    """The table to write: `columns` with an extra_info whose index goes on from `start`.

    `extras` is an array of structs, one for each row: the rows' own extra_info.
    """
    count = columns.num_rows
    own_fields = {field.name: extras.field(index) for index, field in enumerate(extras.type)}
    added = {"split": pa.repeat(split, count), "index": pa.array(np.arange(start, start + count))}
    typed_truth = own_fields.pop(TRUTH, None)
    if typed_truth is not None:
        style = columns["reward_model"].combine_chunks().field("style")
        reward_model = pa.StructArray.from_arrays([style, typed_truth], ["style", "ground_truth"])
        columns = columns.set_column(columns.column_names.index("reward_model"), "reward_model", reward_model)
    info = added | {name: values for name, values in own_fields.items() if name not in added}
    extra = pa.StructArray.from_arrays(list(info.values()), list(info))
    return columns.append_column("extra_info", extra)


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


def unlike_files(paths: Sequence[Path]) -> tuple[Path, str, str] | None:
    """The first file with a column whose type cannot be unified with that of the files before it; the column, with its
    nested fields, and both types. Raises as reading a file's schema does."""
    schema = pq.read_schema(paths[0])
    for path in paths[1:]:
        try:
            schema = pa.unify_schemas([schema, pq.read_schema(path)], promote_options="permissive")
        except pa.ArrowException as error:
            *_, kinds = str(error).split("has incompatible types: ")
            names = re.findall(r"Field (.+?) has incompatible types", str(error))
            return path, ".".join(names) or "a column", kinds
    return None


def join_files(paths: Sequence[Path], target: Path) -> None:
    """Write the rows of all files into one, in order, with the union of their columns. Raises `pyarrow.ArrowException`
    where the types of a column cannot be unified."""
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths], promote_options="permissive")
    with pq.ParquetWriter(target, schema) as writer:
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches():
                table = pa.Table.from_batches([batch])
                missing = [name for name in schema.names if name not in table.column_names]
                for name in missing:
                    table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
                writer.write_table(table.select(schema.names).cast(schema))


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
