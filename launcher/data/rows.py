"""One row of a file: its place, its values, and the checks that JSON and a tokenizer can carry these."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from launcher.core.problems import error_message, short_repr, shortened
from launcher.spec.data import RefusedRow
from launcher.spec.reward import truth_text

MAX_ROW_BYTES = 4 * 2**20
"""A longer row is refused without parsing, and not copied to the log of refused rows."""
MAX_DEPTH = 100
"""Most levels of lists and objects inside each other."""
TOO_DEEP = f"lists and objects are nested too deeply; expected at most {MAX_DEPTH} levels"
BOM = b"\xef\xbb\xbf"

_TYPES = {str: "text", bool: "bool", int: "int", float: "float", list: "list", dict: "object", type(None): "null"}


class UnfitRow(ValueError):
    """A row cannot be used; the message says why."""


class RawRow(NamedTuple):
    """One row of a file, parsed but not interpreted."""

    where: str  # file:line (with the number of an array's element), or file:row for parquet; all count from 1
    values: dict[str, Any]
    line: bytes | None  # its bytes in the file, without the last newline; None for parquet

    def refused(self, reason: str) -> RefusedRow:
        """The row as a refused one; a parquet row is written as JSON, as its bytes are spread over columns."""
        raw = json.dumps(self.values, default=repr) if self.line is None else reversible_text(self.line)
        return RefusedRow(self.where, reason, raw)


Found = RawRow | RefusedRow


def reversible_text(line: bytes | bytearray) -> str:
    """The line as text that encodes to the same bytes (`surrogateescape`); empty where it is too long."""
    return "" if len(line) > MAX_ROW_BYTES else line.decode("utf-8", "surrogateescape")


def too_long(what: str, size: int) -> str:
    return f"the {what} has {size:,} bytes; expected at most {MAX_ROW_BYTES:,} (it stays in the file only)"


def type_name(value: object) -> str:
    """The type of `value` in the terms of JSON."""
    return _TYPES.get(type(value), type(value).__name__)


def store() -> Path:
    """The folder of all downloaded data: $RLRUN_DATA, by default ~/.cache/rlrun/data."""
    return Path(os.environ.get("RLRUN_DATA") or Path("~/.cache/rlrun/data")).expanduser().absolute()


# ---- a line of JSON


def parse_row(where: str, line: bytes, of: str = "line", expected: str = "one object on each line") -> Found:
    """Parse a line, or an array's element, as a row; `of` names it in messages."""
    try:
        return RawRow(where, parse_object(line.removeprefix(BOM), of, expected), line)
    except UnfitRow as unfit:
        return RefusedRow(where, str(unfit), reversible_text(line))


def parse_object(line: bytes, of: str, expected: str) -> dict[str, Any]:
    """Parse JSON that is an object. Raises `UnfitRow`."""
    if len(line) > MAX_ROW_BYTES:
        raise UnfitRow(too_long(of, len(line)))
    if not line.strip():
        raise UnfitRow(f"the {of} is empty; expected {expected}")
    check_bytes(line)
    try:
        values = _DECODER.decode(line.decode())
    except json.JSONDecodeError as error:
        position = f"column {error.colno}" if error.lineno == 1 else f"its line {error.lineno}, column {error.colno}"
        raise UnfitRow(f"invalid JSON at {position}: {error_message(ValueError(error.msg))}") from error
    except RecursionError as error:
        raise UnfitRow(TOO_DEEP) from error
    if not isinstance(values, dict):
        raise UnfitRow(f"the {of} is of type {type_name(values)}; expected {expected}")
    if b"\\u" in line or line.count(b"{") + line.count(b"[") > MAX_DEPTH:  # only these can hold what `check` refuses
        check(values)
    return values


def check_bytes(line: bytes | bytearray) -> None:
    """Raise `UnfitRow` where the bytes are not UTF-8 or contain NUL."""
    if (nul := line.find(b"\0")) >= 0:
        raise UnfitRow(f"a NUL character at byte offset {nul}")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise UnfitRow(f"not UTF-8: byte 0x{line[error.start]:02x} at byte offset {error.start}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        duplicate = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise UnfitRow(f"key {short_repr(duplicate)} stands twice in one object")
    return values


def _int(text: str) -> int:
    """An integer of at most 64 bits, as parquet, orjson and databases have them; longer ones would be changed."""
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
        raise UnfitRow(f"the whole number {short_repr(text, 30)} does not fit 64 bits; write it as text would")
    return number


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnfitRow(f"the number {short_repr(text, 30)} is too large; write it as text")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int, parse_float=_float)

# ---- values of any row


def expect(path: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise UnfitRow(f"{path} is {type_name(value)}; it must be {expected}")
    return value


def json_value(key: str, value: Any, kind: type, expected: str) -> Any:
    """A value that may also be JSON text, as in text columns; None where it is null or blank. Raises `UnfitRow`."""
    if isinstance(value, str):
        try:
            value = parse_object(f'{{"it":{value.strip() or "null"}}}'.encode("utf-8", "surrogatepass"), "", "")["it"]
        except UnfitRow as unfit:
            raise UnfitRow(f"{key} is text that is no JSON; it must be {expected}") from unfit
    return None if value is None else expect(key, value, kind, expected)


def check(values: dict[str, Any]) -> None:
    """Raise `UnfitRow` for text with NUL or lone surrogates, and for too much depth or text."""
    size = _check_value("", values, 1)
    if size > MAX_ROW_BYTES:
        raise UnfitRow(f"the row has {size:,} characters; expected at most {MAX_ROW_BYTES:,}")


def _check_value(path: str, value: Any, depth: int) -> int:
    """The number of characters of all texts in a value. Raises `UnfitRow`."""
    if isinstance(value, str):
        _check_text(path, value)
        return len(value)
    if isinstance(value, list | tuple):
        children = ((f"{path}[{index}]", each) for index, each in enumerate(value))
    elif isinstance(value, dict):
        children = ((_key_path(path, key), each) for key, each in value.items())
    else:
        return 0
    if depth > MAX_DEPTH:
        raise UnfitRow(TOO_DEEP)
    return sum(_check_value(inner, each, depth + 1) for inner, each in children)


def _key_path(path: str, key: str) -> str:
    """A path such as `messages[2].content`; a key that is long or no identifier is written as its repr."""
    inner = f"{path}.{key if len(key) <= 40 and key.isidentifier() else short_repr(key, 40)}".removeprefix(".")
    _check_text(inner, key)
    return inner


def without_nulls(value: Any) -> Any:
    """The value without the keys of its objects that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def truth_of(path: str, value: Any) -> str | None:
    """A ground truth as text; other values become JSON. Raises `UnfitRow`."""
    try:
        return truth_text(value)
    except TypeError:
        raise UnfitRow(f"{path} is {type_name(value)}, or holds one; use what JSON has") from None
    except ValueError:
        raise UnfitRow(f"{path} is {value}; expected finite numbers") from None


def _check_text(path: str, text: str) -> None:
    if "\0" in text:
        raise UnfitRow(f"{shortened(path, 200)} holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnfitRow(f"{shortened(path, 200)} holds a lone surrogate at character {error.start}") from error
