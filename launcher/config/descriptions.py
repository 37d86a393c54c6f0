"""What a settings class takes: each setting with its type, default, range and consequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo

from launcher.config.docstrings import declaration, declared
from launcher.core.settings import ByTarget, listed
from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Shape:
    """What a value has to be."""

    kind: str
    """`int`, `float or null`, `list[str]`, `one of`."""
    range: str = ""
    values: tuple[str, ...] = ()
    """All that it may be, where they can be counted."""
    inside: type | None = None
    """The settings class that it is made of."""


@dataclass(frozen=True)
class Setting:
    """One row of a table of settings."""

    name: str
    """As it is written on the command line: `trainer.save_freq`."""
    shape: Shape
    required: bool
    default: Any
    """None, too, where it is required."""
    says: str
    """The consequence."""
    where: str
    """File and line that declare it."""

    @property
    def shown_default(self) -> str:
        return "required" if self.required else written(self.default)


def settings_of(cls: type, prefix: str, only: Sequence[str] | None = None) -> Iterator[Setting]:
    """Every setting of `cls`, those of its bases first; `only` these, where it is given. Settings inside follow."""
    for name, field in fields_of(cls).items():
        if only is not None and name not in only:
            continue
        shape, where = shape_of(field.annotation, field.metadata), f"{prefix}.{name}" if prefix else name
        found = declaration(cls, name)
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        row = Setting(where, shape, field.is_required(), default, found.says, found.where)
        if shape.inside is None:
            yield row
            continue
        if default is None:  # what it is made of is asked for only when it is given
            yield replace(row, shape=replace(shape, inside=None))
        yield from settings_of(shape.inside, where)


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """Name and declaration of each setting, as pydantic understands it; none for a class without settings."""
    if not is_pydantic_dataclass(cls):
        return {}
    found: dict[str, FieldInfo] = cls.__pydantic_fields__
    return found


def own_fields(cls: type) -> list[str]:
    """The settings that `cls` itself declares: new ones, and those with a default of its own."""
    known = fields_of(cls)
    return [name for name in declared(cls) if name in known]


def shape_of(annotation: Any, metadata: Sequence[Any] = ()) -> Shape:
    """In the words of the command line: `int`, `float or null`, `list[str]`, `one of`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):  # Annotated[...]
        inner, *more = args
        return shape_of(inner, [*_flat(more), *metadata])
    if any(isinstance(rule, ByTarget) for rule in metadata):
        return Shape(f"a choice of {GROUPS[annotation]}")
    if origin in (Union, UnionType):
        return _optional([arg for arg in args if arg is not type(None)], metadata, len(args))
    if origin is Literal:
        values = tuple(map(written, args))
        return Shape("one of", ", ".join(values), values)
    if origin is tuple:
        return _list(args, metadata)
    if origin is dict:
        value = shape_of(args[1])
        return Shape(f"dict[str, {value.kind}]", value.range)
    if annotation is bool:
        return Shape("bool", "", ("true", "false"))
    if is_pydantic_dataclass(annotation):
        return Shape(annotation.__name__, inside=annotation)
    return Shape(annotation.__name__, _pattern(metadata) if annotation is str else _bounds(metadata))


def _optional(kinds: list[Any], metadata: Sequence[Any], of: int) -> Shape:
    shapes = [shape_of(kind, metadata) for kind in kinds]
    types = " or ".join(dict.fromkeys(shape.kind for shape in shapes))
    first, null = shapes[0], ("null",) if of > len(kinds) else ()
    ranges = ", ".join(shape.range for shape in shapes if shape.range)
    return replace(first, kind=" or ".join([types, *null]), range=ranges, values=(*first.values, *null))


def _list(args: tuple[Any, ...], metadata: Sequence[Any]) -> Shape:
    item = shape_of(args[0])
    each = f"{item.kind} {item.range}".strip() if item.kind == "one of" else item.range
    kind = "one" if item.kind == "one of" else item.kind
    alone = any(isinstance(rule, BeforeValidator) and rule.func is listed for rule in metadata)
    count = f"{len(args)} of them" if Ellipsis not in args else ""
    return Shape(
        f"{kind} or list[{kind}]".replace("list[one]", "a list") if alone else f"list[{kind}]",
        ", ".join(part for part in (count, f"each {each}" if each else "", _bounds(metadata)) if part),
    )


def _flat(rules: Sequence[Any]) -> list[Any]:
    """`Field(gt=0)` inside `Annotated` holds its rules."""
    return [found for rule in rules for found in (rule.metadata if isinstance(rule, FieldInfo) else [rule])]


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
                high = f"< {_power(bound)}"
            case Le(le=bound):
                high = f"<= {_power(bound)}"
            case MinLen(min_length=least):
                more = f"at least {least} of them"
    if low and high:
        sign, _, bound = low.partition(" ")
        return f"{bound} {sign.replace('>', '<')} x {high}"
    return low or high or more


def _pattern(metadata: Sequence[Any]) -> str:
    rule = TypeAdapter(Annotated[str, *metadata]).json_schema().get("pattern") if metadata else None
    return f"matches {rule}" if rule else ""


def _power(bound: Any) -> str:
    return "2^63" if bound == 2**63 else written(bound)


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


def _groups() -> dict[Any, str]:
    """The config group of each noun, by its class."""
    return {field.annotation: name for name, field in fields_of(RunSpec).items()}


GROUPS = _groups()
"""`Dataset` -> `data`"""
