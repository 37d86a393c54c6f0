"""A file can be read in one sitting, a function on one screen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("launcher", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
LINES, FUNCTION = 500, 60


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_and_no_function_is_too_long(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION, f"{node.name} has {length} lines"


BROAD = {"Exception", "BaseException"}
ALLOWED = {"launcher/core/user_code.py": 1, "launcher/engines/torch/model/dry_load.py": 1}
"""Code that is not ours may raise anything: it is called at one place, which turns that into a value, and in a program
that imports nothing of this project."""


def _swallowed(handler: ast.ExceptHandler) -> set[str]:
    """The plain names of what it catches (of a bare `except`, everything), unless it raises that again at its end."""
    if isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None:
        return set()
    if handler.type is None:
        return {"BaseException"}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {name.id for name in types if isinstance(name, ast.Name)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_is_swallowed(path):
    """A bare or broad `except` hides what nobody thought of."""
    handlers = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ExceptHandler)]
    broad = [handler.lineno for handler in handlers if _swallowed(handler) & BROAD]
    assert len(broad) == ALLOWED.get(path.relative_to(ROOT).as_posix(), 0), f"lines {broad}"
