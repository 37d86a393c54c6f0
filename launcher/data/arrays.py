"""Arrow's arrays: texts and conversations, and masks that say where they are plainly good.

A mask is a numpy array of bools, one for each row; null is never good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from launcher.data.known_datasets import MARK, NUMBER
from launcher.spec.data import ROLES

# Python's notion of blanks, so that a text is empty here where it is empty there.
_BLANK = r"\x09-\x0d\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_SOME = f"[^{_BLANK}]"


def numbers(solution: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The number after the last marker, and a mask of the rows that clearly have one."""
    parts = pc.split_pattern(solution, MARK, max_splits=1, reverse=True)
    marked = true(pc.equal(pc.list_value_length(parts), 2))
    last = pc.list_element(parts, 1) if marked.all() else _last(parts)
    bare = pc.ascii_trim_whitespace(pc.replace_substring(pc.replace_substring(last, ",", ""), "$", ""))
    return bare, marked & true(pc.match_substring_regex(bare, f"^(?:{NUMBER})$"))


def _last(parts: pa.Array) -> pa.Array:
    """Each list's last text; null for a list that has none."""
    ends = parts.offsets.to_numpy()[1:] - 1
    ends = np.where(true(pc.is_valid(parts)), np.maximum(ends, 0), 0)
    return parts.values.take(pa.array(ends)) if len(parts.values) else pa.nulls(len(parts), pa.string())


def talk(*turns: tuple[str, pa.Array]) -> pa.Array:
    """Conversations of these turns, one for each row."""
    count, each = len(turns[0][1]), len(turns)
    parts = [pa.StructArray.from_arrays([pa.repeat(role, count), text], ["role", "content"]) for role, text in turns]
    if each == 1:
        turn = parts[0]
    else:  # turn by turn becomes row by row
        order = np.arange(count * each).reshape(each, count).T.ravel()
        turn = pa.concat_arrays(parts).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * each), turn)


def chats(messages: pa.Array) -> np.ndarray:
    """Mask of rows in which every turn has a known role and a content, and an assistant's turn is not empty."""
    turn, count = messages.flatten(), len(messages)
    role, content = turn.field("role"), turn.field("content")
    plain = true(pc.is_in(role, pa.array(ROLES))) & true(pc.is_valid(content)) & true(pc.is_valid(turn))
    answers = plain & true(pc.equal(role, "assistant")) & some(content)
    of = pc.list_parent_indices(messages).to_numpy()
    speaks = true(pc.is_in(role, pa.array(["user", "assistant"])))
    odd = np.bincount(of, weights=~plain | nul(content) | (speaks & ~some(content)), minlength=count)
    output = np.bincount(of, weights=answers, minlength=count)
    return true(pc.is_valid(messages)) & (odd == 0) & (output > 0)


def nul(text: pa.Array) -> np.ndarray:
    """Mask of texts with a NUL character. The bytes are searched at once first: a search per text takes ten times as
    long."""
    held = text.buffers()[2]
    if held is None or held.to_pybytes().find(b"\0") < 0:
        return np.zeros(len(text), bool)
    return true(pc.match_substring(text, "\0"))


def size(texts: Iterable[pa.Array], chats: Iterable[pa.Array], rows: int) -> np.ndarray:
    """Bytes of text in each row, those of its conversations, too; characters are never more."""
    total = np.zeros(rows, np.int64)
    for text in texts:
        total += pc.fill_null(pc.binary_length(text), 0).to_numpy()
    for chat in chats:
        lengths = pc.fill_null(pc.binary_length(chat.flatten().field("content")), 0).to_numpy()
        total += np.bincount(pc.list_parent_indices(chat).to_numpy(), weights=lengths, minlength=rows).astype(np.int64)
    return total


def plain_numbers(cell: Mapping[str, pa.Array], count: int) -> np.ndarray:
    """Mask of rows whose numbers are all in range."""
    good = np.ones(count, bool)
    for values in cell.values():
        if values.type == pa.float64():
            good &= true(pc.less(pc.abs(values), 2.0**63), missing=True)
    return good


def label(cell: Mapping[str, pa.Array], name: str, count: int, otherwise: str) -> pa.Array:
    if name not in cell or cell[name].type != pa.string():
        return pa.repeat(otherwise, count)
    return pc.if_else(pc.equal(pc.fill_null(cell[name], ""), ""), otherwise, cell[name])


def some(text: pa.Array) -> np.ndarray:
    """Mask of texts that are not blank."""
    return true(pc.match_substring_regex(text, _SOME))


def true(flags: pa.Array, *, missing: bool = False) -> np.ndarray:
    made: np.ndarray = pc.fill_null(flags, missing).to_numpy(zero_copy_only=False)
    return made
