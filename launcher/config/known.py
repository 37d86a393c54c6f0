"""Every setting that a run can have, and the choices of its config group that have it. Classes are loaded for it."""

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
    """The class that a choice's file names; the noun itself where a group has no classes to choose from."""
    target, noun = leaves(path).get(TARGET), fields_of(RunSpec)[name].annotation
    assert isinstance(noun, type)
    try:
        return locate(str(target.value), noun) if target else noun
    except ValueError as error:
        raise Problems(Problem(str(path), f"{error}", "use a class of that noun", "bad-file")) from error


def holders(files: Mapping[str, Mapping[str, Path]]) -> dict[str, list[str]]:
    """Dotted setting -> the choices of its group that have it, none where each run has it; in the order of a run's
    groups. `files` are the choices of each group. What cannot be loaded is left out."""
    found: dict[str, list[str]] = {}
    for group in fields_of(RunSpec):
        if group in PLAIN:
            found |= {name: [] for name in _below(RunSpec, "") if f"{name}.".startswith(f"{group}.")}
        for choice, path in files.get(group, {}).items():
            names = _names_of_ours if path.is_relative_to(conf_dir()) else _names
            for name in names(group, path):
                found.setdefault(name, []).append(choice)
    return found


def _names(group: str, path: Path) -> tuple[str, ...]:
    try:
        return tuple(_below(class_of(group, path), group))
    except Problems:
        return ()


_names_of_ours = cache(_names)
"""Our own files stay as they are, and all of them are read for each wrong argument."""


def _below(cls: type, prefix: str) -> Iterator[str]:
    for name, field in fields_of(cls).items():
        where, inner = f"{prefix}.{name}".lstrip("."), settings_class(field.annotation)
        if inner and cls is not inner:
            yield from _below(inner, where)
        else:
            yield where


def has_setting(node: Mapping[str, Any], name: str) -> bool:
    """Whether the classes that a run has chosen have the setting `name`, or what it stands below."""
    top, _, rest = name.partition(".")
    if top not in node and top not in PLAIN:
        return False
    cls, below = owner(node, name)
    name, _, inside = below.partition(".")
    declared = fields_of(cls).get(name)
    holds = declared and (not inside or get_origin(declared.annotation) is dict)
    return bool(holds) and (cls is not RunSpec or not rest)
