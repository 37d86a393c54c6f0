"""The class that a config file names, imported only when its source says that it is of the right kind.

To import a module is to run it, so a config must not choose any. A class of a person's own is welcome where its source,
or those of the classes between, says that it extends the one that is wanted; nothing is imported to find that out.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TypeVar

from launcher.core.problems import error_message

T = TypeVar("T")
MOST = 16  # classes between the one that is named and the one that is wanted
LONGEST = 2**20  # bytes of a source that is read
CODE_DIR = "RLRUN_CODE_DIR"
"""Environment variable by which the processes that a run starts learn of the folder of `add_code_dir`."""


def add_code_dir(folder: str | os.PathLike[str] | None) -> None:
    """Make the modules in `folder` importable, here and in subprocesses that call this with the variable CODE_DIR.

    It comes last in the search path, so a module there never hides one that is installed.
    """
    if not folder:
        return
    path = os.path.abspath(folder)
    if path not in sys.path:
        sys.path.append(path)
    os.environ[CODE_DIR] = path


def locate(path: str, base: type[T]) -> type[T]:
    """The class at `package.module.Class`; `ValueError` unless it is a `base`."""
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise ValueError(f"{path!r} is not a class path; expected package.module.Class")
    if module not in sys.modules and not _may_run(module, name, base):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"cannot import {path!r}: {error_message(error)}; use a module that can be imported"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    return found


def _may_run(module: str, name: str, base: type) -> bool:
    """Whether importing `module` is what a config may ask for: its source says that the class extends `base`.

    Raises `ValueError` where there is no such source.
    """
    waiting, seen = [(module, name)], set[tuple[str, str]]()
    while waiting and len(seen) < MOST:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        if place[0] in sys.modules:
            found = vars(sys.modules[place[0]]).get(place[1])
            if isinstance(found, type) and issubclass(found, base):
                return True
        else:
            named = (full.rpartition(".") for full in _Source(place[0]).bases(place[1]))
            waiting += [(of, parent) for of, _, parent in named if of]
    return False


@dataclass(frozen=True)
class _Source:
    """A module, unread until it is asked."""

    module: str

    @property
    def tree(self) -> ast.Module:
        """Raises `ValueError` where the module has no source."""
        file = self._file
        if file is None:
            raise ValueError(f"there is no source of a module {self.module}; expected package.module.Class")
        try:
            if file.stat().st_size > LONGEST:
                raise ValueError(f"{file} has more than {LONGEST:,} bytes; use a smaller module")
            return ast.parse(file.read_bytes())
        except (OSError, SyntaxError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {error_message(error)}; use Python that compiles") from error

    @property
    def _file(self) -> Path | None:
        spec = _found(self.module)
        return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None

    def bases(self, name: str) -> Iterator[str]:
        """`module.Class` of what the class extends; none where no such class stands here, and what is brought in from
        elsewhere under this name is looked for there."""
        tree = self.tree
        names = dict(self._imported(tree))
        if name in names:
            yield names[name]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                if node.name == name:
                    yield from (full for base in node.bases if (full := _full(base, names)))
                names[node.name] = f"{self.module}.{node.name}"

    def _above(self, level: int) -> list[str]:
        """The package that so many dots mean."""
        parts = self.module.split(".")
        file = self._file
        package = file is not None and file.name == "__init__.py"
        return parts[: len(parts) - level + package]

    def _imported(self, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                above = self._above(node.level) if node.level else []
                of = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((alias.asname or alias.name, f"{of}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    yield alias.asname or top, alias.name if alias.asname else top


def _full(base: ast.expr, names: dict[str, str]) -> str:
    """What an expression such as `reward.Reward` or `Generic[T]` names; empty where that is not known."""
    if isinstance(base, ast.Subscript):
        return _full(base.value, names)
    if isinstance(base, ast.Attribute):
        of = _full(base.value, names)
        return f"{of}.{base.attr}" if of else ""
    return names.get(base.id, "") if isinstance(base, ast.Name) else ""


def _found(module: str) -> ModuleSpec | None:
    """Where a module lies. Unlike `importlib.util.find_spec`, it runs no package on the way there."""
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        places = spec.submodule_search_locations if spec else None
        if spec and places is None:
            return None
        name = ".".join(parts[:depth])
        spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, places))), None)
        if spec is None:
            return None
    return spec
