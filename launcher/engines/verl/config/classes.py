"""The dataclasses that verl makes of its config: fields and types, read from its source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

SOURCES = (
    "base_config.py",
    "trainer/config/*.py",
    "workers/config/*.py",
    "utils/profiler/config.py",
    "utils/qat/core.py",
    "utils/skip/config.py",
)
"""Files of the package that define them."""
Fields = Mapping[str, str]
"""The type of each field, as its annotation says it."""
_SCALARS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


def source_files(package: Path) -> list[Path]:
    return sorted(file for pattern in SOURCES for file in package.glob(pattern))


def read_classes(package: Path) -> dict[str, dict[str, str]]:
    """The fields of every dataclass in verl's `package`, inherited ones included."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    for file in source_files(package):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                found[node.name] = bases, dict(map(_field, filter(_is_field, node.body)))  # type: ignore[arg-type]
    return {name: _with_inherited(name, found) for name in sorted(found)}


def accepts(annotation: str, value: object) -> bool:
    """Whether a field of this type takes the value. Whole numbers are taken for fractions, 0 and 1 for a bool, and what
    is not known of a type is not judged."""
    return _accepts(ast.parse(annotation, mode="eval").body, value)


def is_class(annotation: str) -> bool:
    """Whether the type is not a plain one: a section of its own."""
    names = {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
    return any(name[0].isupper() and name not in ("Any", "Optional", "Literal", "Iterable") for name in names)


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _field(node: ast.AnnAssign) -> tuple[str, str]:
    kind = ast.unparse(node.annotation)
    if isinstance(node.value, ast.Constant) and node.value.value is None and not kind.startswith(("Optional", "Any")):
        kind = f"Optional[{kind}]"
    return ast.unparse(node.target), kind


def _with_inherited(name: str, found: Mapping[str, tuple[list[str], dict[str, str]]]) -> dict[str, str]:
    if name not in found:
        return {}
    bases, own = found[name]
    inherited: dict[str, str] = {}
    for base in reversed(bases):
        inherited |= _with_inherited(base, found)
    return {field: kind for field, kind in (inherited | own).items() if not field.startswith("_")}


def _accepts(node: ast.expr, value: object) -> bool:
    match node:
        case ast.Constant(value=None):
            return value is None
        case ast.BinOp(left=left, right=right):
            return _accepts(left, value) or _accepts(right, value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _accepts(inner, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return value in ast.literal_eval(inner if isinstance(inner, ast.Tuple) else ast.Tuple([inner], ast.Load()))
        case ast.Subscript(value=ast.Name(id="list"), slice=inner) if isinstance(value, list):
            return all(_accepts(inner, one) for one in value)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            return _is_a(name, value)
    return True


def _is_a(name: str, value: object) -> bool:
    if name in ("list", "tuple"):
        return isinstance(value, list)
    if name == "dict":
        return value is None or isinstance(value, dict)
    if name == "bool":
        return isinstance(value, bool) or value in (0, 1)
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and not isinstance(value, bool)
    return True
