"""Your own environment: `environment=python environment.path=shop.py environment.name=Shop`, a class whose public typed
methods are tools (`launcher.environments.tools`), or with `async def step(self, episode, answer) -> Observation`.

It runs in processes of its own; a plan asks one of them for its tools.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from launcher.core.files import expand_user
from launcher.core.problems import Problem, error_message, short_repr, suggest
from launcher.core.settings import settings
from launcher.environments.processes import Processes
from launcher.environments.several import SeveralTurns
from launcher.environments.tools import ToolSession
from launcher.rewards.worker.python import module_of
from launcher.spec.environment import Session


@settings
class PythonEnvironment(SeveralTurns):
    """A class of a Python file."""

    path: str
    """The Python file."""
    name: str = "Environment"
    """Name of the class."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments with which it is made for each episode."""

    @property
    def scores(self) -> bool:
        """Whether the class, or one that it extends, has a method `reward`: what it inherits is not looked for."""
        return any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == "reward"
                   for each in self._class.body) or bool(self._class.bases)  # fmt: skip

    @cached_property
    def _class(self) -> ast.ClassDef:
        tree = ast.parse(expand_user(self.path).read_bytes())
        return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == self.name)

    def session(self) -> Session:
        path = Path(self.path).expanduser().resolve()
        return ToolSession(getattr(module_of(path, path), self.name)(**self.kwargs), self)

    def with_absolute_paths(self) -> Self:
        return replace(self, path=str(expand_user(self.path).resolve()))

    def problems(self) -> list[Problem]:
        try:
            tree = ast.parse(expand_user(self.path).read_bytes(), filename=self.path)
        except OSError as error:
            got = f"{short_repr(self.path)} cannot be read, {error_message(error)}"
            return [Problem("environment.path", got, "use a Python file", "bad-file")]
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = error.msg if isinstance(error, SyntaxError) else str(error)
            return [Problem("environment.path", f"{self.path}{line}: {text}", "use a Python file that compiles")]
        known = [node.name for node in ast.iter_child_nodes(tree) if isinstance(node, ast.ClassDef)]
        if self.name in known:
            return []
        fix = suggest(self.name, known, before="environment.name=")
        return [Problem("environment.name", f"{self.path} has no class {self.name!r}", fix)]

    def missing_requirements(self) -> list[Problem]:
        found = self._described
        return [Problem("environment", found, "fix it, or use another class")] if isinstance(found, str) else []

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return [] if isinstance(self._described, str) else self._described

    @cached_property
    def _described(self) -> Sequence[Mapping[str, Any]] | str:
        """The schemas of its tools, or why it cannot be loaded: in a process of its own, as it is a person's code."""
        asked = Processes(replace(self, workers=1))
        try:
            return asked.tools()
        finally:
            asked.close()
