"""pydantic's errors as problems: where, what was found, what to use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from launcher.config.descriptions import fields_of
from launcher.config.nodes import owner
from launcher.config.slips import number_meant
from launcher.core.problems import InvalidSettings, Problem, short_repr, suggest
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

_BOOLS = {"yes": True, "on": True, "y": True, "true": True, "no": False, "off": False, "n": False, "false": False}


def build(node: Any, typed: Mapping[str, str] | None = None) -> RunSpec:
    """The run of a node. Clear values of another type are converted in the node: `1e3` for a whole number, `yes` for
    true, `7` for a text. `typed` maps settings of arguments to their values as they were typed.

    Raises `ValidationError`.
    """
    try:
        return from_node(RunSpec, node)
    except ValidationError as error:
        if not _convert(node, error, typed or {}):
            raise
    return from_node(RunSpec, node)


def _convert(node: Any, error: ValidationError, typed: Mapping[str, str]) -> bool:
    """Convert clear values of another type in the node; whether there were any."""
    converted = False
    for problem in error.errors(include_url=False):
        keys: list[Any] = [part for part in problem["loc"] if _is_key(part)] or [""]
        *above, last = keys
        meant = _intended_value(problem["type"], problem["input"], typed.get(".".join(map(str, (*above, last)))))
        holder = node
        for key in above:
            holder = holder.get(key) if isinstance(holder, dict) else holder[key] if isinstance(holder, list) else None
        if meant is not None and isinstance(holder, dict | list):
            holder[last], converted = meant, True
    return converted


def _intended_value(kind: str, value: Any, text: str | None) -> Any:
    """The value in the type that a rule of pydantic asks for; None where it is not clear what was meant."""
    if kind.startswith("int_") and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "bool_type" and isinstance(value, str):
        return _BOOLS.get(value.lower())
    if kind == "bool_type" and value in (0, 1):
        return bool(value)
    if kind == "string_type" and isinstance(value, int | float):
        return text or (None if isinstance(value, float) else str(value))
    return None


def explain(error: ValidationError, node: Mapping[str, Any]) -> list[Problem]:
    """The errors as problems; branches of a union that failed at one place make one problem."""
    by_place: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        by_place.setdefault(tuple(filter(_is_key, problem["loc"])), []).append(problem)
    problems = list[Problem]()
    for loc, errors in by_place.items():
        names = map(str, takewhile(lambda part: isinstance(part, str), loc))  # items of a list have none
        problems += _problems(".".join(names), errors, node)
    return problems


def _is_key(part: int | str) -> bool:
    """Whether a part of a place is a key, and not a union branch (`tuple[...]`, `function-before[...]`)."""
    return isinstance(part, int) or "[" not in part


def _problems(place: str, errors: list[ErrorDetails], node: Mapping[str, Any]) -> Iterator[Problem]:
    first = errors[0]
    kind, received = first["type"], first["input"]
    if kind == "unexpected_keyword_argument":
        cls, key = owner(node, place)
        near = suggest(key, list(fields_of(cls)), listed="it has")
        yield Problem(place, f"{cls.__name__} has no setting {key!r}", near, "unknown-setting")
    elif kind == "missing" and isinstance(first["loc"][-1], int):
        yield Problem(place, f"got {short_repr(list(received))}", f"use a list of at least {first['loc'][-1] + 1}")
    elif kind == "missing":
        yield Problem(place, "has no value", f"use {place}=VALUE")
    elif kind == "value_error":
        raised = first["ctx"]["error"]
        problems = raised.problems if isinstance(raised, InvalidSettings) else [Problem("", str(raised))]
        yield from (replace(each, where=".".join(filter(None, (place, each.where)))) for each in problems)
    else:
        yield _wrong_value(place, errors, node)


def _wrong_value(place: str, errors: list[ErrorDetails], node: Mapping[str, Any]) -> Problem:
    first = errors[0]
    received = first["input"]
    expected = " or ".join(dict.fromkeys(expected_by(each) for each in errors))
    cls, key = owner(node, place)
    declared = fields_of(cls).get(key)
    if "number" in expected and declared and type(None) in get_args(declared.annotation):
        expected += " or null"
    index = next((part for part in first["loc"] if isinstance(part, int)), None)
    if index is not None:
        return Problem(place, f"got {short_repr(received)} as item {index + 1}", f"use {expected}")
    meant = number_meant(received) if isinstance(received, str) and "number" in expected else ""
    is_number = meant and ("whole" not in expected or meant.lstrip("+-").isdigit())
    return Problem(place, f"got {short_repr(received)}", f"use {place}={meant}" if is_number else f"use {expected}")


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "none_required": "null",
    "tuple_type": "a list",
    "dataclass_type": "a group of settings",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
    "literal_error": "{expected}",
    "greater_than": "a number > {gt}",
    "greater_than_equal": "a number >= {ge}",
    "less_than": "a number < {lt}",
    "less_than_equal": "a number <= {le}",
    "string_pattern_mismatch": "a name of letters, digits, '.', '_' and '-', at most 128 and not beginning with '.'",
}


def expected_by(problem: Mapping[str, Any]) -> str:
    """What the violated rule of pydantic asks for, in words."""
    if pattern := _EXPECTED.get(problem["type"].replace("_parsing", "_type")):
        return pattern.format(**problem.get("ctx", {}))
    text = re.sub(r"\A\w+ should (?:be|have) ", "", problem["msg"]).partition(", ")[0]
    return text[:1].lower() + text[1:]
