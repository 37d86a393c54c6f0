"""What a settings class takes: each setting with its type, default, range and consequence.

The string under a field is read from the source when it is asked for. pydantic's `use_attribute_docstrings` would read
it whenever a class is made: measured, 0.12 s more of every command and of every process of a run.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, PydanticInvalidForJsonSchema, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo

from launcher.core.files import PACKAGE
from launcher.core.settings import listed


@dataclass(frozen=True)
class Shape:
    """Type, range and choices of a setting's value."""

    kind: str
    """`int`, `float or null`, `list[str]`, `one of`."""
    range: str = ""
    values: tuple[str, ...] = ()
    """All values that it may have, where they can be listed."""
    inside: type | None = None
    """The settings class of a value that is a group of settings."""


@dataclass(frozen=True)
class Setting:
    """One row of a table of settings."""

    name: str
    """The full name, as it is written on the command line: `trainer.save_freq`."""
    shape: Shape
    required: bool
    default: Any
    """None where there is none, as the setting is required."""
    description: str
    """The string under the field: what its value changes."""

    @property
    def shown_default(self) -> str:
        return "required" if self.required else written(self.default)


def settings_of(cls: type, prefix: str, only: Sequence[str] | None = None) -> Iterator[Setting]:
    """Every setting of `cls`, or `only` those named, its bases' first; a group is replaced by the settings in it."""
    for name, field in fields_of(cls).items():
        if only is not None and name not in only:
            continue
        shape, full_name = shape_of(field.annotation, field.metadata), f"{prefix}.{name}" if prefix else name
        default = default_of(field)
        row = Setting(full_name, shape, field.is_required(), default, description_of(cls, name))
        if shape.inside is None:
            yield row
            continue
        if default is None:  # an optional group: its settings are read only where it is given
            yield replace(row, shape=replace(shape, inside=None))
        yield from settings_of(shape.inside, full_name)


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """Name and declaration of each setting, as pydantic understands it; none for a class without settings."""
    return dict(cls.__pydantic_fields__) if is_pydantic_dataclass(cls) else {}


def default_of(field: FieldInfo) -> Any:
    """The default of a setting; None where it is required."""
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def own_fields(cls: type) -> list[str]:
    """The settings that `cls` itself declares: new ones, and those with a default of its own."""
    return [name for name in vars(cls).get("__annotations__", {}) if name in fields_of(cls)]


def description_of(cls: type, name: str) -> str:
    """The string under the field `name` of `cls` as one line; empty where there is none. A subclass that only changes
    the default keeps the base's string."""
    return next((text for owner in cls.__mro__ if (text := _fields_in_body(owner).get(name))), "")


@cache
def _fields_in_body(cls: type) -> dict[str, str]:
    """The string of each field in the body of `cls` itself; none where its source cannot be read."""
    try:
        source = inspect.getsource(cls) if is_dataclass(cls) else ""
        body = getattr(ast.parse(textwrap.dedent(source)).body[0], "body", [])
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    return {
        field.target.id: _docstring_in(below)
        for field, below in zip_longest(body, body[1:])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _docstring_in(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def class_doc(cls: type) -> str:
    """First paragraph of the class's own docstring; not its base's, and not the signature that dataclasses write."""
    text = vars(cls).get("__doc__") or ""
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def spelled(path: Path) -> str:
    """A path as people write it: `launcher/...` for ours, else relative to the working folder where it lies below."""
    for base in (PACKAGE.parent, Path.cwd()):
        if path.is_absolute() and path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return os.fspath(path)


_KINDS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "null", "object": "a choice"}
_BOUNDS = (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))


def shape_of(annotation: Any, metadata: Sequence[Any] = ()) -> Shape:
    """A type as the command line's help names it: `int`, `float or null`, `list[str]`, `one of`."""
    branches = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else [annotation]
    inside = next(filter(is_pydantic_dataclass, branches), None)
    try:
        schema = TypeAdapter(Annotated[annotation, *metadata, Field()]).json_schema()
    except PydanticInvalidForJsonSchema:  # such as a type or a function
        return Shape("Any", inside=inside)
    kind, limits, values = _shape_of_schema(schema)
    rules = [*getattr(annotation, "__metadata__", ()), *metadata]
    if any(isinstance(rule, BeforeValidator) and rule.func is listed for rule in rules):
        item = kind.removeprefix("list[").removesuffix("]")
        kind = f"{item} or {'a list' if item == 'one' else kind}"
    return Shape(kind, limits, values, inside)


def _shape_of_schema(schema: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Kind, range and values of what has this JSON schema, as pydantic writes it."""
    match schema:
        case {"anyOf": branches}:
            kinds, ranges, values = zip(*map(_shape_of_schema, branches), strict=True)
            return " or ".join(dict.fromkeys(kinds)), ", ".join(filter(None, ranges)), tuple(chain(*values))
        case {"enum": choices} | {"const": choices}:
            shown = tuple(map(written, choices if "enum" in schema else [choices]))
            return "one of", ", ".join(shown), shown
        case {"type": "array"}:
            return *_list_shape(schema), ()
        case {"additionalProperties": inner} if inner:
            kind, limits, _ = ("Any", "", ()) if inner is True else _shape_of_schema(inner)
            return f"dict[str, {kind}]", limits, ()
        case {"$ref": title} | {"properties": _, "title": title}:
            return title.rpartition("/")[2], "", ()
    kind = _KINDS.get(schema.get("type", ""), "Any")
    limits = f"matches {schema['pattern']}" if "pattern" in schema else _range(schema)
    return kind, limits, {"bool": ("true", "false"), "null": ("null",)}.get(kind, ())


def _list_shape(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and range of a list."""
    fixed = schema.get("prefixItems", [])
    kind, limits, _ = _shape_of_schema(fixed[0] if fixed else schema["items"])
    least = 0 if fixed else schema.get("minItems", schema.get("minLength", 0))
    count = f"{len(fixed)} of them" if fixed else ""
    each = f"each {'one of ' if kind == 'one of' else ''}{limits}" if limits else ""
    ranges = (count, each, f"at least {least} of them" if least else "")
    return f"list[{'one' if kind == 'one of' else kind}]", ", ".join(filter(None, ranges))


def _range(schema: Mapping[str, Any]) -> str:
    """`> 0`, `0 <= x < 1`; empty where any value will do."""
    bounds = [
        (sign, "2^63" if schema[key] == 2**63 else written(schema[key])) for key, sign in _BOUNDS if key in schema
    ]
    if len(bounds) == 2:
        (low_sign, low), (high_sign, high) = bounds
        return f"{low} {low_sign.replace('>', '<')} x {high_sign} {high}"
    return " ".join(bounds[0]) if bounds else ""


def written(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {written(inner)}' for key, inner in value.items())}}}"
    return str(value)
