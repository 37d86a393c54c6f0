"""A file can be read in one sitting, a function has few ways through it, and a class name means one thing."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("without_gc")
ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("launcher", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
LINES, COMPLEXITY = 500, 15
ABOVE = 0
"""Functions above the limit; the number may only fall."""

BRANCHES = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.Assert | ast.match_case


def complexity(function: ast.AST) -> int:
    """Cyclomatic complexity, counted strictly: conditional expressions, boolean operators and each part of a
    comprehension count as branches do; functions inside count for themselves."""
    total, nodes = 1, list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        nodes += ast.iter_child_nodes(node)
    return total


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """All of each file."""
    return {path.relative_to(ROOT).as_posix(): [*ast.walk(ast.parse(path.read_text()))] for path in FILES}


def test_no_file_is_too_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert not {path: lines for path, lines in lengths.items() if lines > LINES}


def test_no_function_is_too_complex():
    functions = [
        (complexity(node), f"{path}:{node.lineno} {node.name}")
        for path, found in nodes().items()
        for node in found
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    complex_functions = [found for found in functions if found[0] > COMPLEXITY]
    assert len(complex_functions) <= ABOVE, sorted(complex_functions, reverse=True)


def test_no_class_name_twice():
    of_ours = [found for path, found in nodes().items() if path.startswith("launcher/")]
    counted = Counter(node.name for found in of_ours for node in found if isinstance(node, ast.ClassDef))
    assert not {name for name, count in counted.items() if count > 1}
