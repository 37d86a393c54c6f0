"""A run as plain dicts and lists: the dotted name of each value, and the class that declares it; and every setting that
a run can have, with the choices that have it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError

from launcher.config.descriptions import fields_of
from launcher.config.yaml_lines import leaves
from launcher.core.classes import locate
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.spec.run import RunSpec

TARGET = "_target_"
PLAIN = ("optim", "critic", "trainer", "seed")
"""Settings of a run that arguments set and that are not config groups."""


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


def accepts(node: Any, name: str, value: Any) -> bool:
    """Whether the run's setting `name` takes a value; also True where the run has no such setting."""
    cls, key = owner(node, name)
    declared = fields_of(cls).get(key)
    if declared is None:
        return True
    hint: Any = declared.annotation
    try:
        TypeAdapter(Annotated[hint, *declared.metadata, Field()]).validate_json(json.dumps(value, default=str))
    except ValidationError:
        return False
    return True


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


# ---- what there is


def class_of(name: str, path: Path) -> type:
    """The class that a choice's file names; the group's base class where it names none. Raises `Problems`."""
    target, noun = leaves(path).get(TARGET), fields_of(RunSpec)[name].annotation
    assert isinstance(noun, type)
    try:
        return locate(str(target.value), noun) if target else noun
    except ValueError as error:
        raise Problems(Problem(str(path), f"{error}", "use a class of that noun", "bad-file")) from error


def holders(files: Mapping[str, Mapping[str, Path]]) -> dict[str, list[str]]:
    """Dotted setting -> the choices of its group that have it, empty where every run has it; in the order of a run's
    groups. `files`: group -> choice -> file. Choices that cannot be loaded are left out; the classes of all others
    are loaded."""
    choices_by_setting: dict[str, list[str]] = {}
    for group in fields_of(RunSpec):
        if group in PLAIN:
            choices_by_setting |= {name: [] for name in _walk_fields(RunSpec, "") if f"{name}.".startswith(f"{group}.")}
        for choice, path in files.get(group, {}).items():
            names = _cached_setting_names if path.is_relative_to(conf_dir()) else _setting_names
            for name in names(group, path):
                choices_by_setting.setdefault(name, []).append(choice)
    return choices_by_setting


def _setting_names(group: str, path: Path) -> tuple[str, ...]:
    try:
        return tuple(_walk_fields(class_of(group, path), group))
    except Problems:
        return ()


_cached_setting_names = cache(_setting_names)
"""Cached for our own files, which do not change: all of them are read for each wrong argument."""


def _walk_fields(cls: type, prefix: str) -> Iterator[str]:
    for name, field in fields_of(cls).items():
        where, inner = f"{prefix}.{name}".lstrip("."), settings_class(field.annotation)
        if inner and cls is not inner:
            yield from _walk_fields(inner, where)
        else:
            yield where


def has_setting(node: Mapping[str, Any], name: str) -> bool:
    """Whether the classes that a run has chosen declare the setting `name`, or the dict that it is an entry of."""
    top, _, rest = name.partition(".")
    if top not in node and top not in PLAIN:
        return False
    cls, below = owner(node, name)
    name, _, inside = below.partition(".")
    declared = fields_of(cls).get(name)
    holds = declared and (not inside or get_origin(declared.annotation) is dict)
    return bool(holds) and (cls is not RunSpec or not rest)
