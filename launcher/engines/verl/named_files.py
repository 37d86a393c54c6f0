"""What is in the files that a config of verl's names: Python, lists of tools and agents, adapters. Nothing is run."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher.core.bounded_parse import parse_yaml
from launcher.core.files import read_file
from launcher.engines.verl.rules.paths import HELD, OBJECTS
from launcher.engines.verl.rules.settings import MODEL, ROLLOUT, at
from launcher.rewards.python import Function, bound_names

DYNAMIC = ("globals(", "__getattr__", "setattr(", "exec(", "vars(", "locals(")
"""In the text of a file that binds names which are not to be read in it."""
DECORATOR = "function_tool"
MODELS = (MODEL, "critic.model", "model")


def objects(config: dict[str, Any], checked: str | None) -> dict[str, frozenset[str] | str]:
    """The names that each Python file binds, but for the file `checked`; a text is why it does not compile."""
    found: dict[str, frozenset[str] | str] = {}
    for key in OBJECTS:
        path = _local(at(config, key))
        if path and path != checked and (names := _bound(path)) is not None:
            found[str(at(config, key))] = names
    return found


def _local(value: object) -> str:
    """The path of a file of this machine; verl runs in another folder, so that it is a whole one."""
    path = os.path.expanduser(value.removeprefix("file://")) if isinstance(value, str) else ""
    return path if os.path.isabs(path) and os.path.isfile(path) else ""


def _bound(path: str) -> frozenset[str] | str | None:
    try:
        text = Path(path).read_text("utf-8-sig")
        names = frozenset(name for name, _ in bound_names(ast.parse(text)))
    except (OSError, UnicodeDecodeError):
        return None
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return f"{path}{line}: {error.msg if isinstance(error, SyntaxError) else error}"
    return None if "*" in names or any(word in text for word in DYNAMIC) else names


def function_tools(config: dict[str, Any]) -> dict[str, str] | None:
    """The functions that are tools, each with why verl makes none of it; None where there is no file to read."""
    path = _local(at(config, f"{ROLLOUT}.multi_turn.function_tool_path"))
    try:
        tree = ast.parse(Path(path).read_bytes()) if path else None
    except (OSError, SyntaxError, ValueError):
        return None
    if tree is None or any(name == "*" for name, _ in bound_names(tree)):
        return None
    decorated = ((node, _decorators(node)) for node in ast.walk(tree) if isinstance(node, Function))
    return {node.name: "" if given else _schema_problem(node) for node, (is_tool, given) in decorated if is_tool}


def _decorators(function: Function) -> tuple[bool, bool]:
    """Whether a function is a tool, and whether its schema is given with it."""
    calls = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in calls]
    keywords = [word.arg for each in function.decorator_list if isinstance(each, ast.Call) for word in each.keywords]
    return DECORATOR in names, "schema" in keywords


def _schema_problem(function: Function) -> str:
    """Why no schema can be made of a function (function_tool.py:171, and get_json_schema of transformers)."""
    of, text = function.args, ast.get_docstring(function)
    if of.vararg or of.kwarg:
        return f"takes *{(of.vararg or of.kwarg).arg}"  # type: ignore[union-attr]
    if not text:
        return "has no docstring"
    for argument in (*of.posonlyargs, *of.args, *of.kwonlyargs):
        if argument.annotation is None:
            return f"has no type of {argument.arg}"
        if not re.search(rf"(?ms)^\s*Args:\s*$.*^\s*{re.escape(argument.arg)}\s*(\([^)]*\))?\s*:", text):
            return f"does not describe {argument.arg} under Args: of its docstring"
    return ""


def tools(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Class and type of each tool in the list that tool_config_path names."""
    return tuple(_tools(_listed_in(at(config, f"{ROLLOUT}.multi_turn.tool_config_path"))))


def _listed_in(value: object) -> object:
    """What a YAML file holds; None where there is none to read, or where only verl could say what a part stands for."""
    path = _local(value)
    try:
        text = read_file(Path(path)) if path else b""
        return None if b"${" in text else parse_yaml(text)
    except (OSError, ValueError, YAMLError):
        return None


def _tools(node: object) -> Iterator[tuple[str, str]]:
    listed = node.get("tools") if isinstance(node, dict) else None
    for tool in listed if isinstance(listed, list) else []:
        if isinstance(tool, dict):
            yield str(tool.get("class_name") or ""), str(at(tool, "config.type") or "")


def agent_loops(config: dict[str, Any]) -> dict[str, str] | None:
    """Name and class of each agent loop in the list that agent_loop_config_path names."""
    node = _listed_in(at(config, f"{ROLLOUT}.agent.agent_loop_config_path"))
    if not isinstance(node, list) or not all(isinstance(each, dict) and "name" in each for each in node):
        return None
    return {str(each["name"]): str(each.get("_target_") or "") for each in node}


def folders(config: dict[str, Any]) -> dict[str, frozenset[str]]:
    """The names in the folders that a model's settings name."""
    named = (at(config, f"{place}.{name}") for place in MODELS for name in HELD)
    found = {path: _listed(path) for path in named if isinstance(path, str)}
    return {path: names for path, names in found.items() if names is not None}


def _listed(path: str) -> frozenset[str] | None:
    folder = os.path.expanduser(path)
    try:
        return frozenset(os.listdir(folder)) if os.path.isabs(folder) else None
    except (OSError, ValueError):  # ValueError: a NUL
        return None


def adapter_rank(config: dict[str, Any]) -> int | None:
    """The rank of the adapter that training begins with."""
    named = at(config, f"{MODELS[0]}.lora_adapter_path")
    try:
        file = Path(os.path.expanduser(named), "adapter_config.json") if isinstance(named, str) and named else None
        node = json.loads(file.read_bytes()) if file else None
    except (OSError, ValueError):
        return None
    rank = node.get("r") if isinstance(node, dict) else None
    return rank if isinstance(rank, int) else None
