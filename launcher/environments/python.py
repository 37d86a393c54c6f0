"""Your own environment: `environment=python environment.path=shop.py environment.name=Shop`, a class whose public typed
methods are tools (`launcher.environments.tools`), or with `async def step(self, episode, answer) -> Observation`.

It runs in processes of its own; a plan asks one of them for its tools.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.core.problems import Problem, Problems, suggest
from launcher.core.python_file import PythonFile
from launcher.core.settings import settings
from launcher.environments.processes import Processes
from launcher.environments.several import SeveralTurns
from launcher.environments.tools import ToolSession
from launcher.rewards.worker.python import module_of
from launcher.spec.environment import Session


@settings
class PythonEnvironment(PythonFile, SeveralTurns):
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
        """Whether the class, or one that it extends, has a method `reward`: what it inherits is not looked for."""
        return any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == "reward"
                   for each in self._class.body) or bool(self._class.bases)  # fmt: skip

    @cached_property
    def _class(self) -> ast.ClassDef:
        tree = self.parsed()
        assert isinstance(tree, ast.Module)
        return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == self.name)

    def session(self) -> Session:
        return ToolSession(self._made(**self.kwargs), self)

    @cached_property
    def _made(self) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(module_of(Path(self.path).expanduser().resolve(), self.original), self.name)
        return made

    def problems(self) -> list[Problem]:
        tree = self.parsed()
        if isinstance(tree, list):
            return tree
        known = [node.name for node in ast.iter_child_nodes(tree) if isinstance(node, ast.ClassDef)]
        if self.name in known:
            return []
        fix = suggest(self.name, known, before="environment.name=")
        return [Problem("environment.name", f"{self.path} has no class {self.name!r}", fix)]

    def missing_requirements(self) -> list[Problem]:
        found = self._described
        return [Problem("environment", found, "fix it, or use another class")] if isinstance(found, str) else []

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Raises `Problems` where it cannot be loaded."""
        if problems := self.missing_requirements():
            raise Problems(problems)
        return self._described if not isinstance(self._described, str) else []

    @cached_property
    def _described(self) -> Sequence[Mapping[str, Any]] | str:
        """The schemas of its tools, or why it cannot be loaded: in a process of its own, as it is a person's code."""
        asked = Processes(replace(self, workers=1))
        try:
            return asked.tools()
        finally:
            asked.close()
