"""Runs tests in a process of their own; they call the tested code in another process."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import os
import socket
import symtable
import sys
import typing
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from launcher.core.user_code import CallFailure, try_call
from launcher.rewards.worker.calls import Ask, asking


def run(tests: dict[str, Any], channel: socket.socket, report: int) -> None:
    """Write 1 or 0 to the descriptor `report` after each test."""
    sys.set_int_max_str_digits(0)
    ask = asking(channel)
    for passed in _run_calls(tests, ask) if "calls" in tests else _run_statements(tests["text"], ask):
        os.write(report, b"1" if passed else b"0")


def _run_calls(tests: dict[str, Any], ask: Ask) -> Iterator[bool]:
    for args, expected in tests["calls"]:
        yield try_call(partial(_call_passes, tests["name"], ask, args, expected)) is True


def _call_passes(name: str, ask: Ask, args: list[Any], expected: Any) -> bool:
    result = _call_function(name, ask, args)
    is_wrapped = isinstance(expected, list) and len(expected) == 1  # some data sets wrap each result in a list
    return _equal(result, expected) or (is_wrapped and _equal(result, expected[0]))


def _call_function(name: str, ask: Ask, args: list[Any]) -> Any:
    """The result of the function, or of the method of a new object of class Solution if there is no function."""
    lookup = try_call(partial(ask, [name, (), None]))
    function = getattr(ask(["Solution", (), None])[0](), name) if isinstance(lookup, CallFailure) else lookup[0]
    return function(*args)


def _equal(result: Any, expected: Any) -> bool:
    """Equal as JSON: tuples are lists; floats may differ by 1e-6, relative or absolute."""
    if isinstance(result, float | Fraction | Decimal) or isinstance(expected, float):
        return all(map(_is_number, (result, expected))) and math.isclose(result, expected, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(result, list | tuple | deque | range) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(_equal, result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        result = {key if isinstance(key, str) else json.dumps(key): value for key, value in result.items()}
        return result.keys() == expected.keys() and all(_equal(result[key], expected[key]) for key in result)
    return type(result) is type(expected) and bool(result == expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Fraction | Decimal) and not isinstance(value, bool)


def counted(node: ast.stmt) -> bool:
    """Whether a statement is a test: an assert or a call, and no definition or import."""
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def _run_statements(text: str, ask: Ask) -> Iterator[bool]:
    tree = ast.parse(text)
    names: dict[str, Any] = {"__name__": "tests"}
    with_attributes = {node.value.id for node in ast.walk(tree)
                   if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}  # fmt: skip
    for name in sorted(_free_names(tree)):
        is_library = name in sys.stdlib_module_names and name in with_attributes
        value = try_call(partial(importlib.import_module, name) if is_library else partial(_tested_object, name, ask))
        if not isinstance(value, CallFailure):
            names[name] = value
    for node in tree.body:
        outcome = try_call(partial(_execute, node, names))
        if counted(node):
            yield not isinstance(outcome, CallFailure)


def _execute(node: ast.stmt, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), "tests", "exec"), names)


def _free_names(tree: ast.Module) -> set[str]:
    """Names that the tests use and do not define."""
    tables = list[symtable.SymbolTable]()
    for node in tree.body:
        with suppress(SyntaxError):  # such a statement fails by itself
            tables.append(symtable.symtable(ast.unparse(node), "tests", "exec"))
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    used, bound = set[str](), [each for each in symbols if each.is_assigned() or each.is_imported()]
    for table in tables:
        tables += table.get_children()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return used - {symbol.get_name() for symbol in bound} - set(vars(builtins))


def _tested_object(name: str, ask: Ask) -> Any:
    """The object of that name in the tested code. Libraries are never taken from there: they could be fakes."""
    return getattr(typing, name) if name in typing.__all__ else ask([name, (), None])[0]
