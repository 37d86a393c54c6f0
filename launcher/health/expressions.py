"""Conditions of health rules: a small part of Python over the metrics so far, and over a run's settings.

    mean(entropy, 2) >= max(1, 4 * first(entropy, 3)) and not rose(reward)
    run.data.shuffle and not run.solved and fell(reward)

A metric's name stands in a call; `run.` is followed by a setting, or by a fact of `run_facts`. Numbers, texts,
comparisons, `and`, `or`, `not` and arithmetic are Python's. A comparison of what is not known is false, so `not` of it
is true: of a metric that the log does not have, or has too few values of, and of a setting that the run does not have.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from inspect import signature
from types import CodeType
from typing import Any

from launcher.health.series import UnknownValue

_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Call, ast.Name, ast.Load,
    ast.Constant, ast.Attribute,
)  # fmt: skip
LONGEST = 1000  # characters; a condition is a line
PLAIN: Mapping[str, Callable[..., float]] = {"max": max, "min": min, "abs": abs}
METRICS = ("metric", "self", "other", "third")
"""Parameters of functions that take a metric's name; they come first."""
_COMPARE, _RUN = "_compare", "_run"  # names that no metric has


class _Guard(ast.NodeTransformer):
    """Makes of `a < b` a call that is false where a value is unknown, of a metric's name a text, and of `run.a.b` a
    call that looks it up."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        late = ast.Lambda(args=nothing, body=node)
        return ast.Call(func=ast.Name(id=_COMPARE, ctx=ast.Load()), args=[late], keywords=[])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        args = [ast.Constant(each.id) if isinstance(each, ast.Name) else self.visit(each) for each in node.args]
        return ast.Call(func=node.func, args=args, keywords=[])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        path = ast.Constant(ast.unparse(node).removeprefix("run."))
        return ast.Call(func=ast.Name(id=_RUN, ctx=ast.Load()), args=[path], keywords=[])


def parse_condition(
    text: str, metrics: Collection[str], functions: Mapping[str, Any], run: Collection[str] | None = None
) -> CodeType:
    """Code for `evaluate`; `run` are the names that may stand behind `run.`, None
    stands for any. Raises `ValueError` that says what is not
    allowed, or which name is unknown."""
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters; expected at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no expression: {error}") from error
    named = set[int]()
    for node in ast.walk(tree):
        named |= _check_node(node, text, metrics, functions, run)
    for node in ast.walk(tree):
        if id(node) in named:
            continue
        if isinstance(node, ast.Name):
            raise ValueError(f"{text!r}: {node.id} stands alone; use a call such as last({node.id})")
        if isinstance(node, ast.Constant) and type(node.value) not in (int, float):
            raise ValueError(f"{text!r}: {node.value!r} is no number")
    return compile(ast.fix_missing_locations(_Guard().visit(tree)), "<health rule>", "eval")


def _check_node(
    node: ast.AST, text: str, metrics: Collection[str], functions: Mapping[str, Any], run: Collection[str] | None
) -> set[int]:
    """The names and texts below a node that are in their place, as ids of nodes. Raises `ValueError`."""
    if not isinstance(node, _NODES):
        raise ValueError(f"{text!r}: {type(node).__name__} is not allowed; use comparisons, and, or, not, numbers")
    if isinstance(node, ast.Call):
        return _check_call(node, text, metrics, functions)
    if isinstance(node, ast.Attribute):
        _check_path(ast.unparse(node), text, run)
        return {id(node.value)}
    if isinstance(node, ast.Compare) and any(isinstance(each, ast.Attribute) for each in ast.walk(node)):
        return {id(each) for each in node.comparators if isinstance(each, ast.Constant)}  # they may be texts
    return set()


def _check_path(path: str, text: str, run: Collection[str] | None) -> None:
    head, *names = path.split(".")
    if head != "run" or not all(name.isidentifier() and not name.startswith("_") for name in names):
        raise ValueError(f"{text!r}: {path} is not allowed; a point stands only in names such as run.optim.lr")
    if run is not None and names[0] not in run:
        raise ValueError(f"{text!r}: a run has no {names[0]}; use one of {', '.join(sorted(run))}")


def _check_call(node: ast.Call, text: str, metrics: Collection[str], functions: Mapping[str, Any]) -> set[int]:
    """The names in a call that are in their place, as ids of nodes."""
    if not isinstance(node.func, ast.Name) or node.keywords:
        raise ValueError(f"{text!r}: only plain calls such as mean(reward, 3) are allowed")
    name = node.func.id
    if name not in functions:
        raise ValueError(f"{text!r}: unknown function {name}; use one of {', '.join(sorted(functions))}")
    takes = [] if name in PLAIN else [each for each in signature(functions[name]).parameters if each in METRICS]
    if name not in PLAIN:
        try:
            signature(functions[name]).bind(*node.args)
        except TypeError as error:
            raise ValueError(f"{text!r}: {name}: {error}") from error
    elif len(node.args) < (1 if name == "abs" else 2):
        raise ValueError(f"{text!r}: {name} has too few arguments")
    metrics_here = node.args[: len(takes)]
    if wrong := [each for each in metrics_here if not (isinstance(each, ast.Name) and each.id in metrics)]:
        got, known = ast.unparse(wrong[0]), ", ".join(sorted(metrics))
        raise ValueError(f"{text!r}: {name} needs a metric, got {got}; use one of {known}, or name it under metrics")
    return {id(node.func), *map(id, metrics_here)}


def _compare(late: Callable[[], bool]) -> bool:
    try:
        return late()
    except UnknownValue:
        return False


def namespace(functions: Mapping[str, Any], run: Callable[[str], Any]) -> dict[str, Any]:
    """What a condition may name, for `evaluate`; `run` gives the value behind `run.`."""
    return {"__builtins__": {}, _COMPARE: _compare, _RUN: run, **functions}


def evaluate(code: CodeType, names: dict[str, Any]) -> Any:
    """The value of a parsed condition. Raises `UnknownValue` where it is no comparison and a value is unknown."""
    try:
        return eval(code, names)
    except (ZeroDivisionError, OverflowError, TypeError) as error:
        raise UnknownValue from error
