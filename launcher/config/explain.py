"""pydantic's errors as problems: where, what was found, what to use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from launcher.config.descriptions import fields_of
from launcher.config.nodes import owner
from launcher.core.problems import InvalidSettings, Problem, short_repr, suggest


def explain(error: ValidationError, node: Mapping[str, Any]) -> list[Problem]:
    """Several branches of a union that failed at one place make one problem."""
    by_place: dict[str, list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"] if _is_key(part))
        by_place.setdefault(place, []).append(problem)
    return [found for place, errors in by_place.items() for found in _problems(place, errors, node)]


def _is_key(part: int | str) -> bool:
    """Union branches stand in the place too (`tuple[...]`, `function-before[...]`): they are no keys."""
    return isinstance(part, int) or "[" not in part


def _problems(place: str, errors: list[ErrorDetails], node: Mapping[str, Any]) -> Iterator[Problem]:
    first = errors[0]
    kind, received = first["type"], first["input"]
    if kind == "unexpected_keyword_argument":
        cls, key = owner(node, place)
        near = suggest(key, list(fields_of(cls)), listed="it has")
        yield Problem(place, f"{cls.__name__} has no setting {key!r}", near, "unknown-setting")
    elif kind == "missing":
        yield Problem(place, "has no value", f"use {place}=VALUE")
    elif kind == "value_error":
        raised = first["ctx"]["error"]
        problems = raised.problems if isinstance(raised, InvalidSettings) else [Problem("", str(raised))]
        yield from (replace(each, where=".".join(filter(None, (place, each.where)))) for each in problems)
    else:
        wants = " or ".join(dict.fromkeys(_wanted(each) for each in errors))
        yield Problem(place, f"got {short_repr(received)}", f"use {wants}")


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
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


def _wanted(problem: ErrorDetails) -> str:
    """What pydantic's rule asks for."""
    pattern = _WANTED.get(problem["type"])
    return pattern.format(**problem.get("ctx", {})) if pattern else problem["msg"][:1].lower() + problem["msg"][1:]
