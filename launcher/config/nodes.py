"""A run as plain dicts and lists: the dotted name of each value, and the class that declares it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, Union, get_args, get_origin

from launcher.config.descriptions import fields_of
from launcher.core.classes import locate
from launcher.spec.run import RunSpec

TARGET = "_target_"


def walk(node: Any, place: str = "", *, lists: bool = True, dot: str = ".") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of each leaf; with `lists` each item of a list is a leaf (`data.train_files.0`)."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(node, Mapping):
        pairs = list(node.items())
    elif lists and isinstance(node, list):
        pairs = list(enumerate(node))
    if not pairs:
        yield place, node
    for key, value in pairs:
        yield from walk(value, f"{place}{dot}{key}" if place else str(key), lists=lists, dot=dot)


def flat(node: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name -> value, as in spec.yaml; `algorithm._target_` is the chosen class. Lists are values."""
    return dict(walk(node, lists=False)) if node else {}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dicts of dotted names and their values: the inverse of `flat`."""
    node: dict[str, Any] = {}
    for name, value in values.items():
        inner, (*above, last) = node, name.split(".")
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return node


def apart(values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split flat values into group -> name of its class, and the other values."""
    targets = {name.removesuffix(f".{TARGET}"): str(value).rpartition(".")[2]
               for name, value in values.items() if name.endswith(f".{TARGET}")}  # fmt: skip
    return targets, {name: value for name, value in values.items() if not name.endswith(f".{TARGET}")}


def owner(node: Any, name: str) -> tuple[type, str]:
    """The settings class that declares the dotted `name`, and the name below it: `n`, or `weights.gsm8k` of a dict."""
    cls: type = RunSpec
    keys, below = name.split("."), name
    noun = fields_of(RunSpec).get(keys[0])
    for depth, key in enumerate(keys[:-1], 1):
        node = node.get(key) if isinstance(node, Mapping) else None
        target = node.get(TARGET) if isinstance(node, Mapping) else None
        declared = fields_of(cls).get(key) if below.startswith(f"{key}.") else None
        inner = settings_class(declared.annotation) if declared else None
        if target and noun and isinstance(noun.annotation, type):
            with suppress(ValueError):  # the value of _target_ is not a class of this group
                inner = locate(str(target), noun.annotation)
        if inner:
            cls, below = inner, ".".join(keys[depth:])
    return cls, below


def settings_class(hint: Any) -> type | None:
    """The settings class that an annotation names, alone or in a union; None where it names none."""
    hints = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((each for each in hints if isinstance(each, type) and fields_of(each)), None)


def absolute(reference: str, place: str) -> str:
    """The full name that an interpolation at `place` refers to: `..a[0]` seen from `b.c.d` is `b.a.0`."""
    name = reference.replace("[", ".").replace("]", "").rstrip(".")
    relative = name.lstrip(".")
    dots = len(name) - len(relative)
    return ".".join([*(place.split(".")[:-dots] if dots else []), relative])
