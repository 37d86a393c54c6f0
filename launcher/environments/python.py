"""Your own environment: `environment=python environment.path=shop.py environment.name=Shop`, a class whose public typed
methods are tools (`launcher.environments.tools`), or with `async def step(self, episode, answer) -> Observation`.

It runs in subprocesses; a plan starts one of them to list its tools.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, suggest
from launcher.core.python_file import PythonFile
from launcher.core.settings import settings
from launcher.environments.several import ForeignTools
from launcher.environments.tools import ToolSession
from launcher.rewards.worker.python import module_of
from launcher.spec.environment import Session


@settings
class PythonEnvironment(PythonFile, ForeignTools):
    """A class of a Python file."""

    group = "environment"

    path: str
    """The Python file. A run reads a copy of it and of what it imports from its folder, in RUN/code."""
    name: str = "Environment"
    """Name of the class."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments with which it is made for each episode."""
    copied_from: str | None = None
    """Where `path` is a run's copy, the folder of the original: files that it opens beside itself are there. Runs set
    it."""

    @property
    def scores(self) -> bool:
        """Whether the class has a method `reward`; assumed of one with base classes, which are not inspected."""
        return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "reward"
                   for node in self._class_node.body) or bool(self._class_node.bases)  # fmt: skip

    @cached_property
    def _class_node(self) -> ast.ClassDef:
        tree = self.parsed()
        assert isinstance(tree, ast.Module)
        return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == self.name)

    def session(self) -> Session:
        return ToolSession(self._loaded_class(**self.kwargs), self)

    @cached_property
    def _loaded_class(self) -> Callable[..., Any]:
        cls: Callable[..., Any] = getattr(module_of(Path(self.path).expanduser().resolve(), self.original), self.name)
        return cls

    def problems(self) -> list[Problem]:
        tree = self.parsed()
        if isinstance(tree, list):
            return tree
        class_names = [node.name for node in ast.iter_child_nodes(tree) if isinstance(node, ast.ClassDef)]
        if self.name in class_names:
            return []
        fix = suggest(self.name, class_names, before="environment.name=")
        return [Problem("environment.name", f"{self.path} has no class {self.name!r}", fix)]
