"""Conditions of health rules: a small subset of Python over the metrics so far and a run's settings.

    mean(entropy, 2) >= max(1, 4 * first(entropy, 3)) and not rose(reward)
    run.data.shuffle and not run.solved and fell(reward)

A metric's name is an argument of a call; `run.` is followed by a setting, or by a fact of `run_facts`. Numbers, texts,
comparisons, `and`, `or`, `not` and arithmetic are Python's. A comparison with an unknown value is false, so `not` of it
is true: a metric that is not in the log or has too few values there, or a setting that the run does not have.
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
"""Parameters that take a metric; they are the first ones of a function."""
_COMPARE, _RUN = "_compare", "_run"  # reserved names


class _ConditionReader(ast.NodeTransformer):
    """Turns `a < b` into a call that is false where a value is unknown, and `run.a.b` into a call that looks it up.
    Raises `ValueError` for anything that is not allowed in a condition."""

    def __init__(self, metrics: Collection[str], functions: Mapping[str, Any], run: Collection[str] | None) -> None:
        self.metrics, self.functions, self.run = metrics, functions, run

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _NODES):
            raise ValueError(f"{type(node).__name__} is not allowed; use comparisons, and, or, not, numbers")
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        raise ValueError(f"{node.id} stands alone; use a call such as last({node.id})")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) not in (int, float):
            raise ValueError(f"{node.value!r} is no number")
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        of_run = any(isinstance(child, ast.Attribute) for child in ast.walk(node))  # a setting may be a text
        sides = [each if of_run and isinstance(each, ast.Constant) else self.visit(each)
                 for each in (node.left, *node.comparators)]  # fmt: skip
        compared = ast.Compare(sides[0], [self.visit(operator) for operator in node.ops], sides[1:])
        no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return _call(_COMPARE, ast.Lambda(args=no_arguments, body=compared))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        head, *names = ast.unparse(node).split(".")
        if head != "run" or not all(name.isidentifier() and not name.startswith("_") for name in names):
            raise ValueError(f"{ast.unparse(node)} is not allowed; a point stands only in names such as run.optim.lr")
        if self.run is not None and names[0] not in self.run:
            raise ValueError(f"a run has no {names[0]}; use one of {', '.join(sorted(self.run))}")
        return _call(_RUN, ast.Constant(".".join(names)))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise ValueError("only plain calls such as mean(reward, 3) are allowed")
        name, metric_count = node.func.id, 0
        if name not in self.functions:
            raise ValueError(f"unknown function {name}; use one of {', '.join(sorted(self.functions))}")
        if name in PLAIN and len(node.args) < (1 if name == "abs" else 2):
            raise ValueError(f"{name} has too few arguments")
        if name not in PLAIN:
            parameters = signature(self.functions[name])
            metric_count = sum(parameter in METRICS for parameter in parameters.parameters)
            try:
                parameters.bind(*node.args)
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from error
        for argument in node.args[:metric_count]:
            if not (isinstance(argument, ast.Name) and argument.id in self.metrics):
                needs = f"{name} needs a metric, got {ast.unparse(argument)}"
                metrics = ", ".join(sorted(self.metrics))
                raise ValueError(f"{needs}; use one of {metrics}, or name it under metrics")
        node.args[metric_count:] = map(self.visit, node.args[metric_count:])
        return node


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[argument], keywords=[])


def parse_condition(
    text: str, metrics: Collection[str], functions: Mapping[str, Any], run: Collection[str] | None = None
) -> CodeType:
    """Code for `evaluate`; `run` are the names that may follow `run.`, None allows any. Raises `ValueError` that says
    what is not allowed, or which name is unknown."""
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters; expected at most {LONGEST}")
    try:
        read = _ConditionReader(metrics, functions, run).visit(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no expression: {error}") from error
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    return compile(ast.fix_missing_locations(read), "<health rule>", "eval")


def _compare(comparison: Callable[[], bool]) -> bool:
    try:
        return comparison()
    except UnknownValue:
        return False


def namespace(named: Mapping[str, Any], run: Callable[[str], Any]) -> dict[str, Any]:
    """The functions and metrics that a condition may name, for `evaluate`; `run` returns the value behind `run.`."""
    return {"__builtins__": {}, _COMPARE: _compare, _RUN: run, **named}


def evaluate(code: CodeType, names: dict[str, Any]) -> Any:
    """The value of a parsed condition. Raises `UnknownValue` where an unknown value is outside of a comparison."""
    try:
        return eval(code, names)
    except (ZeroDivisionError, OverflowError, TypeError) as error:
        raise UnknownValue from error
