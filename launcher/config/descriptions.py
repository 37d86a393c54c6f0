"""What a settings class takes: each setting with its type, default, range and consequence.

The string under a field is read from the source when it is asked for. pydantic's `use_attribute_docstrings` would read
it whenever a class is made: measured, 0.12 s more of every command and of every process of a run.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo

from launcher.core.files import PACKAGE
from launcher.core.settings import ByTarget, listed
from launcher.spec.run import RunSpec


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
    where: str
    """File and line that declare the setting."""

    @property
    def shown_default(self) -> str:
        return "required" if self.required else written(self.default)


def settings_of(cls: type, prefix: str, only: Sequence[str] | None = None) -> Iterator[Setting]:
    """Every setting of `cls`, or `only` those named, its bases' first; a group is replaced by the settings in it."""
    for name, field in fields_of(cls).items():
        if only is not None and name not in only:
            continue
        shape, full_name = shape_of(field.annotation, field.metadata), f"{prefix}.{name}" if prefix else name
        declared = declaration(cls, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        row = Setting(full_name, shape, field.is_required(), default, declared.description, declared.where)
        if shape.inside is None:
            yield row
            continue
        if default is None:  # an optional group: its settings are read only where it is given
            yield replace(row, shape=replace(shape, inside=None))
        yield from settings_of(shape.inside, full_name)


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """Name and declaration of each setting, as pydantic understands it; none for a class without settings."""
    return dict(cls.__pydantic_fields__) if is_pydantic_dataclass(cls) else {}


def own_fields(cls: type) -> list[str]:
    """The settings that `cls` itself declares: new ones, and those with a default of its own."""
    return [name for name in vars(cls).get("__annotations__", {}) if name in fields_of(cls)]


@dataclass(frozen=True)
class Declaration:
    where: str
    """`launcher/spec/run.py:40`: the line that gives the field its default."""
    description: str
    """The string under the field as one line; empty where there is none."""


def declaration(cls: type, name: str) -> Declaration:
    """Where `cls` gets the field `name` from. A subclass that only changes the default keeps the base's string."""
    declared = [(owner, *found[name]) for owner in cls.__mro__ if name in (found := _fields_in_body(owner))]
    if not declared:
        return Declaration(_file_of(cls), "")
    owner, line, _ = declared[0]
    return Declaration(f"{_file_of(owner)}:{line}", next((text for _, _, text in declared if text), ""))


@cache
def _fields_in_body(cls: type) -> dict[str, tuple[int, str]]:
    """Line and string of each field in the body of `cls` itself; none where its source cannot be read."""
    try:
        lines, first = inspect.getsourcelines(cls) if is_dataclass(cls) else ([], 0)
        body = getattr(ast.parse(textwrap.dedent("".join(lines))).body[0], "body", [])
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    return {
        field.target.id: (first + field.lineno - 1, _docstring_in(below))
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


def _file_of(cls: type) -> str:
    try:
        return spelled(Path(inspect.getfile(cls)))
    except (TypeError, OSError):  # built in, or typed at a prompt
        return "built in"


def spelled(path: Path) -> str:
    """A path as people write it: `launcher/...` for ours, else relative to the working folder where it lies below."""
    for base in (PACKAGE.parent, Path.cwd()):
        if path.is_absolute() and path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return os.fspath(path)


def shape_of(annotation: Any, metadata: Sequence[Any] = ()) -> Shape:
    """A type as the command line's help names it: `int`, `float or null`, `list[str]`, `one of`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):  # Annotated[...]
        inner, *more = args  # `Field(gt=0)` keeps them in its metadata
        rules = chain.from_iterable(rule.metadata if isinstance(rule, FieldInfo) else [rule] for rule in more)
        return shape_of(inner, [*rules, *metadata])
    if any(isinstance(rule, ByTarget) for rule in metadata):
        return Shape(f"a choice of {GROUPS[annotation]}")
    if origin in (Union, UnionType):
        return _union_shape([arg for arg in args if arg is not type(None)], metadata, len(args))
    if origin is Literal:
        values = tuple(map(written, args))
        return Shape("one of", ", ".join(values), values)
    if origin is tuple:
        return _list_shape(args, metadata)
    if origin is dict:
        value = shape_of(args[1])
        return Shape(f"dict[str, {value.kind}]", value.range)
    if annotation is bool:
        return Shape("bool", "", ("true", "false"))
    if is_pydantic_dataclass(annotation):
        return Shape(annotation.__name__, inside=annotation)
    return Shape(annotation.__name__, _pattern(metadata) if annotation is str else _bounds(metadata))


def _union_shape(kinds: list[Any], metadata: Sequence[Any], branches: int) -> Shape:
    shapes = [shape_of(kind, metadata) for kind in kinds]
    types = " or ".join(dict.fromkeys(shape.kind for shape in shapes))
    first, null = shapes[0], ("null",) if branches > len(kinds) else ()
    ranges = ", ".join(shape.range for shape in shapes if shape.range)
    return replace(first, kind=" or ".join([types, *null]), range=ranges, values=(*first.values, *null))


def _list_shape(args: tuple[Any, ...], metadata: Sequence[Any]) -> Shape:
    item = shape_of(args[0])
    item_range = f"{item.kind} {item.range}".strip() if item.kind == "one of" else item.range
    kind = "one" if item.kind == "one of" else item.kind
    single = any(isinstance(rule, BeforeValidator) and rule.func is listed for rule in metadata)
    count = f"{len(args)} of them" if Ellipsis not in args else ""
    return Shape(
        f"{kind} or list[{kind}]".replace("list[one]", "a list") if single else f"list[{kind}]",
        ", ".join(part for part in (count, f"each {item_range}" if item_range else "", _bounds(metadata)) if part),
    )


def _bounds(metadata: Sequence[Any]) -> str:
    """`> 0`, `0 <= x < 1`, `at least 1 of them`; empty where any value will do."""
    low = high = more = ""
    for rule in metadata:
        match rule:
            case Gt(gt=bound):
                low = f"> {written(bound)}"
            case Ge(ge=bound):
                low = f">= {written(bound)}"
            case Lt(lt=bound):
                high = f"< {'2^63' if bound == 2**63 else written(bound)}"
            case Le(le=bound):
                high = f"<= {written(bound)}"
            case MinLen(min_length=least):
                more = f"at least {least} of them"
    if low and high:
        sign, _, bound = low.partition(" ")
        return f"{bound} {sign.replace('>', '<')} x {high}"
    return low or high or more


def _pattern(metadata: Sequence[Any]) -> str:
    rule = TypeAdapter(Annotated[str, *metadata]).json_schema().get("pattern") if metadata else None
    return f"matches {rule}" if rule else ""


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


GROUPS: dict[Any, str] = {field.annotation: name for name, field in fields_of(RunSpec).items()}
"""The config group of each noun: `Dataset` -> `data`."""
