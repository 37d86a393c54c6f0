"""Every setting that a run can have, and the choices of its config group that have it; loads all their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from launcher.config.arguments import PLAIN
from launcher.config.descriptions import fields_of
from launcher.config.nodes import TARGET, owner, settings_class
from launcher.config.yaml_lines import leaves
from launcher.core.classes import locate
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems
from launcher.spec.run import RunSpec


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
    groups. `files`: group -> choice -> file. Choices that cannot be loaded are left out."""
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
