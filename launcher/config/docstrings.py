"""Where a setting is declared, and the string under it: read from the source, which a wheel holds, too."""

from __future__ import annotations

import ast
import inspect
import os
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Declared:
    line: int
    says: str
    """The string under the field as one line; empty where there is none."""


@dataclass(frozen=True)
class Declaration:
    where: str
    """`launcher/spec/run.py:40`: the line that gives the field its default."""
    says: str


def declaration(cls: type, name: str) -> Declaration:
    """Where `cls` has the field `name` from. A subclass that only changes the default keeps the string."""
    held = [(owner, found[name]) for owner in cls.__mro__ if name in (found := declared(owner))]
    if not held:
        return Declaration(spelled(source_of(cls)), "")
    owner, nearest = held[0]
    return Declaration(f"{spelled(source_of(owner))}:{nearest.line}", next((d.says for _, d in held if d.says), ""))


@cache
def declared(cls: type) -> dict[str, Declared]:
    """What the body of `cls` itself declares, in its order."""
    node = _class_node(cls)
    body = node.body if node else []
    return {
        field.target.id: Declared(field.lineno, _string(below))
        for field, below in zip_longest(body, body[1:])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def class_says(cls: type) -> str:
    """First paragraph of the class's own docstring; not its base's, and not the signature that dataclasses write."""
    node = _class_node(cls)
    return _one_line((ast.get_docstring(node) or "").partition("\n\n")[0]) if node else ""


def source_of(cls: type) -> Path | None:
    """The file that `cls` stands in; None for one that has no file."""
    try:
        file = inspect.getsourcefile(cls)
    except (TypeError, OSError):  # built in, or typed at a prompt
        return None
    return Path(file) if file else None


def spelled(path: Path | None) -> str:
    """As a person finds it: `launcher/...` for ours, from the working folder for what lies below that."""
    if path is None:
        return "built in"
    for base in (PACKAGE.parent, Path.cwd()):
        if path.is_absolute() and path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return os.fspath(path)


def _class_node(cls: type) -> ast.ClassDef | None:
    path = source_of(cls)
    return _classes(path).get(cls.__qualname__) if path and is_dataclass(cls) else None


@cache
def _classes(path: Path) -> dict[str, ast.ClassDef]:
    """The classes of a file by name; none where the file has gone."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return _one_line(node.value.value)
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
