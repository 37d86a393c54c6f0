"""A user's own Python file that settings name by `path`: `reward=python`, `environment=python`."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, error_message, nearest, path_repr, suggest

CODE = "code"  # subfolder of a run's folder, as in runs.folder.Folder


class PythonFile:
    """Base of such settings; `copied_from` is the folder of the original where `path` is a run's copy."""

    path: str
    copied_from: str | None
    group: ClassVar[str]
    """Their group of settings: `reward`, `environment`."""

    @property
    def original(self) -> Path:
        """The user's file: `path`, or the original of a copy in a run's folder `code`."""
        path = Path(self.path).expanduser().resolve()
        return Path(self.copied_from, path.name) if self.copied_from and path.parent.parent.name == CODE else path

    def with_absolute_paths(self) -> Self:
        return self._with_path(str(expand_user(self.path).resolve()))

    def within(self, folder: Path) -> Self:
        return self._with_path(str(folder.absolute() / self.path))

    def _with_path(self, path: str) -> Self:
        copy: Any = replace(self, path=path)  # type: ignore[type-var]  # a mixin of dataclasses
        return copy

    def parsed(self) -> ast.Module | list[Problem]:
        """The parsed source, or the problems of reading it."""
        try:
            return ast.parse(expand_user(self.path).read_bytes(), filename=self.path)
        except Problems as error:
            return [problem.within(f"{self.group}.path") for problem in error.problems]
        except OSError as error:
            return [self._read_problem(error)]
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = error.msg if isinstance(error, SyntaxError) else str(error)
            return [Problem(f"{self.group}.path", f"{self.path}{line}: {text}", "use a Python file that compiles")]

    def _read_problem(self, error: OSError) -> Problem:
        """The problem that the file cannot be read; it suggests a file beside it with a similar name."""
        got = f"{path_repr(self.path)} cannot be read, {error_message(error)}"
        path = Path(self.path)
        beside = [each.name for each in path.expanduser().parent.glob("*.py")] if self.path.isprintable() else []
        fix = "use a Python file"
        if nearest(path.name, beside, cutoff=0.75):  # they share the ending
            fix = suggest(path.name, beside, before=f"{self.group}.path={self.path.removesuffix(path.name)}")
        return Problem(f"{self.group}.path", got, fix, "bad-file")
