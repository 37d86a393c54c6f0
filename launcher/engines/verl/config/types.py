"""Whether a field of a dataclass of verl takes a value, by the annotation in verl's source."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, Optional

from pydantic import ConfigDict, TypeAdapter, ValidationError

_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


class _Names(dict[str, Any]):
    """What the names of types stand for; a class of verl's takes anything."""

    def __missing__(self, name: str) -> Any:
        return Any


_NAMES = _Names(
    Optional=Optional, Literal=Literal, str=str, int=int, float=float, bool=bool | Literal[0, 1], list=list, tuple=list,
    dict=dict,
)  # fmt: skip
"""A config has lists for tuples, and 0 and 1 do for a bool."""


def accepts(annotation: str, value: object) -> bool:
    """Whether a field of this type takes the value. Whole numbers are accepted as floats, and a class of verl's accepts
    anything."""
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def _adapter(annotation: str) -> TypeAdapter[Any]:
    """The texts are those of `snapshot.json` and `beside.yaml`, and never a user's, so that they may be evaluated."""
    kind = eval(annotation, {"__builtins__": {}}, _NAMES)
    return TypeAdapter(kind, config=ConfigDict(strict=True))


def words_of(annotation: str) -> str:
    """The type in words: `a whole number`."""
    plain = annotation[len("Optional[") : -1] if annotation.startswith("Optional[") else annotation
    if plain.startswith("dict"):
        return "a section"
    return "[A,B]" if plain.startswith(("list", "tuple")) else _WORDS.get(plain.partition(" ")[0], plain)


def kind_of_default(key: str, default: Any) -> str:
    """The type of a setting that no dataclass of verl has, by its default."""
    last = key.rpartition(".")[2]
    if last.endswith(("_size", "_per_gpu")):
        return "Optional[int]" if default is None else "int"
    if isinstance(default, bool):
        return "Optional[bool]"
    if isinstance(default, int | float):
        return "float"
    if isinstance(default, list):
        return "Optional[list | str]"
    if isinstance(default, str) and not default.startswith("${"):
        return "Optional[str | int | float | bool]"
    return "Optional[str]" if default is None and last.endswith(("path", "name", "_key", "_dir")) else "Any"
