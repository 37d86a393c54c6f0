"""pydantic's problems as lines for people: where: what came; what would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from launcher.core.classes import locate
from launcher.core.problems import short_repr, suggest
from launcher.spec.run import RunSpec


def explain(error: ValidationError, node: Mapping[str, Any]) -> list[str]:
    """One line for each problem; several of a union's branches that failed at one place make one line."""
    by_place: dict[str, list[ErrorDetails]] = {}
    for problem in error.errors(include_url=False):
        place = ".".join(str(part) for part in problem["loc"] if _is_key(part))
        by_place.setdefault(place, []).append(problem)
    return [line for place, problems in by_place.items() for line in _lines(place, problems, node)]


def _is_key(part: int | str) -> bool:
    """Union branches stand in the place too (`tuple[...]`, `function-before[...]`): they are no keys."""
    return isinstance(part, int) or "[" not in part


def _lines(place: str, problems: list[ErrorDetails], node: Mapping[str, Any]) -> Iterator[str]:
    first = problems[0]
    kind, came = first["type"], first["input"]
    if kind == "unexpected_keyword_argument":
        yield _unknown(place, node)
    elif kind == "missing":
        yield f"{place}: has no value; {place}=VALUE would do"
    elif kind == "value_error" and not place:
        yield from str(first["ctx"]["error"]).splitlines()
    elif kind == "value_error":
        yield f"{place}: {first['ctx']['error']}"
    else:
        wants = " or ".join(dict.fromkeys(_wanted(problem) for problem in problems))
        yield f"{place}: got {short_repr(came)}; {wants} would do"


def _unknown(place: str, node: Mapping[str, Any]) -> str:
    parent, _, key = place.rpartition(".")
    owner = owner_of(parent, node)
    known = [field.name for field in fields(owner)] if owner and is_dataclass(owner) else []
    name = owner.__name__ if owner else parent
    return f"{place}: {name} has no setting {key!r}; {suggest(key, known, listed='it has')}"


def owner_of(path: str, node: Mapping[str, Any]) -> type | None:
    """The settings class that stands at `path` of the run."""
    if not path:
        return RunSpec
    top, *_ = keys = path.split(".")
    base, held, target = _class_of(get_type_hints(RunSpec)[top]), node, None
    for key in keys:  # a choice may hold choices: the innermost counts
        held = held[key] if isinstance(held, Mapping) and key in held else {}
        target = held.get("_target_", target) if isinstance(held, Mapping) else target
    try:
        return locate(str(target), base) if target and base else base
    except ValueError:  # the group takes no _target_
        return base


def _class_of(hint: Any) -> type | None:
    if get_origin(hint) in (Union, UnionType):
        return next((found for arg in get_args(hint) if (found := _class_of(arg))), None)
    return hint if isinstance(hint, type) else None


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
    "string_pattern_mismatch": "a name of letters, digits, '.', '_' and '-', at most 128 and not beginning with '.',",
}


def _wanted(problem: ErrorDetails) -> str:
    """What pydantic's rule asks for."""
    pattern = _WANTED.get(problem["type"])
    return pattern.format(**problem.get("ctx", {})) if pattern else problem["msg"][:1].lower() + problem["msg"][1:]
