"""How a setting is declared, checked and looked up; independent of what a setting means."""

from __future__ import annotations

import json
from inspect import isabstract
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from pydantic_core import core_schema

from launcher.core.classes import locate

T = TypeVar("T")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


def listed(value: Any) -> Any:
    """A single name becomes a tuple of it, and a list a tuple; other values are left as they are."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
"""A text or a list of texts, stored as a tuple."""


class ReadOnlyWith:
    """Marks a setting, or a whole group, that a run reads only with another value beside it. Where it is given without
    that, a plan warns that it has no effect.

    `Annotated[Positive, ReadOnlyWith("kl_ctrl", "adaptive", fix="algorithm.kl_ctrl=adaptive")] = 0.1`
    """

    def __init__(self, other: str, *values: Any, fix: str, why: str = "") -> None:
        """`other` is a setting or property of the same class, or, after `run.`, of the run; with `values` of it, or any
        true value, the setting is read. `fix` is the argument with which it is, in which `{place}` stands for the place
        of the class in the run; `why` says why it is not, where `other` is not a setting."""
        self.other, self.values, self.fix, self.why = other, values, fix, why


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """A frozen dataclass that checks its values, converts none of them, and refuses keys it does not know.

    The string under a field is that field's documentation.
    """
    built: Any = dataclass(cls, frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
    return built


class ByTarget:
    """Builds a config group's value: `_target_` in its YAML names which subclass to build."""

    def __get_pydantic_core_schema__(self, base: type, _: Any) -> core_schema.CoreSchema:
        def build(node: Any) -> Any:
            if isinstance(node, base):
                return node
            if not isinstance(node, dict):
                raise ValueError(f"needs a choice of its config group, not a value of type {type(node).__name__}")
            values = dict(node)
            target = values.pop("_target_", None)
            if not isinstance(target, str):
                received = "has no _target_" if target is None else f"_target_ is {target!r}"
                raise ValueError(f"{received}; its config file names the {base.__name__} class to build")
            chosen: type = locate(target, base)
            if not is_pydantic_dataclass(chosen) or isabstract(chosen):
                raise ValueError(f"{target} cannot be built; use a class with @settings and every method")
            return from_node(chosen, values)

        def dump(value: Any) -> dict[str, Any]:
            cls = type(value)
            values = adapter(cls).dump_python(value, mode="json")
            return {"_target_": f"{cls.__module__}.{cls.__qualname__}", **values}

        out = core_schema.plain_serializer_function_ser_schema(dump)
        return core_schema.no_info_plain_validator_function(build, serialization=out)

    def __get_pydantic_json_schema__(self, _: core_schema.CoreSchema, __: Any) -> dict[str, Any]:
        return {"type": "object"}


Chosen = Annotated[T, ByTarget()]
"""A value whose class is the one that the config group's file names."""

_adapters: dict[type, TypeAdapter[Any]] = {}


def adapter(cls: type) -> TypeAdapter[Any]:
    """The pydantic adapter of a settings class, cached, as building one costs more than using it."""
    if cls not in _adapters:
        _adapters[cls] = TypeAdapter(cls)
    return _adapters[cls]


def from_node(cls: type[T], node: Any) -> T:
    """A settings class from plain dicts, lists and scalars; pydantic's `ValidationError` names what is wrong.

    The node is read as JSON, as strict reading of JSON accepts a dict for a class, but never `true` for 1.
    """
    built: T = adapter(cls).validate_json(json.dumps(node))
    return built
