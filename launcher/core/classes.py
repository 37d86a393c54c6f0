"""The class that a config file names, imported only when its source says that it has the required base class.

Importing a module runs it, so a config must not choose any module. A user's own class is accepted where its source, or
that of the classes between, says that it extends the required one; nothing is imported to find that out.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from threading import Lock
from typing import TypeVar

from launcher.core.files import read_file
from launcher.core.problems import error_message
from launcher.core.user_code import Raised, caught

T = TypeVar("T")
_LOCK = Lock()
MOST = 16  # most classes between the named one and the required one
LONGEST = 2**20  # most bytes of a source file that is read
CODE_DIR = "RLRUN_CODE_DIR"
"""Environment variable that passes the folder of `add_code_dir` to the processes that a run starts."""


def add_code_dir(folder: str | os.PathLike[str] | None) -> None:
    """Make the modules in `folder` importable, here and in subprocesses that call this with the variable CODE_DIR.

    It comes last in the search path, so a module there never hides one that is installed.
    """
    if not folder:
        return
    path = os.path.abspath(folder)
    with _LOCK:
        if path not in sys.path:
            sys.path.append(path)
    os.environ[CODE_DIR] = path


def locate(path: str, base: type[T]) -> type[T]:
    """The class at `package.module.Class`. Raises `ValueError` unless it extends `base`."""
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise ValueError(f"{path!r} is not a class path; expected package.module.Class")
    if module not in sys.modules and not _may_import(module, name, base):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    cls = caught(lambda: getattr(importlib.import_module(module), name))
    if isinstance(cls, Raised):
        error, line = cls.error, cls.own_line
        reason = error_message(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        reason = f"{reason} ({line})" if line else reason
        raise ValueError(f"cannot import {path!r}: {reason}; use a module that can be imported") from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    return cls


def _may_import(module: str, name: str, base: type) -> bool:
    """Whether a config may import `module`: its source says that the class `name` extends `base`.

    Raises `ValueError` where there is no such source.
    """
    pending, seen = [f"{module}.{name}"], set[str]()
    while pending and len(seen) < MOST:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        module, _, name = path.rpartition(".")
        if module not in sys.modules:
            pending += [parent for parent in _base_paths(module, name) if "." in parent]
        elif isinstance(cls := vars(sys.modules[module]).get(name), type) and issubclass(cls, base):
            return True
    return False


def _base_paths(module: str, name: str) -> list[str]:
    """`module.Class` of each base class, and of the class that the module imports by this name, as its source says.

    Raises `ValueError` where the module has no source.
    """
    file = _source_file(module)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    paths, names = list[str](), dict[str, str]()
    for node in _parse_file(file).body:
        if isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # more dots than packages
                prefix = resolve_name("." * node.level + (node.module or ""), package)
                names |= {alias.asname or alias.name: f"{prefix}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds `a`
                prefix = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or prefix] = prefix
        elif isinstance(node, ast.ClassDef):
            if node.name == name:
                paths += filter(None, (_full_name(base, names) for base in node.bases))
            names[node.name] = f"{module}.{node.name}"
    own_path = f"{module}.{name}"
    return paths if names.get(name, own_path) == own_path else [*paths, names[name]]


def _parse_file(file: Path) -> ast.Module:
    try:
        return ast.parse(read_file(file, LONGEST))
    except (OSError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error_message(error)}; use Python that compiles") from error


def _full_name(base: ast.expr, names: dict[str, str]) -> str:
    """Full name of a base class such as `reward.Reward` or `Generic[T]`; empty where it is unknown."""
    if isinstance(base, ast.Subscript):
        return _full_name(base.value, names)
    if isinstance(base, ast.Attribute):
        prefix = _full_name(base.value, names)
        return f"{prefix}.{base.attr}" if prefix else ""
    return names.get(base.id, "") if isinstance(base, ast.Name) else ""


def _source_file(module: str) -> Path:
    """A module's file. Unlike `importlib.util.find_spec`, it runs no package on the way there."""
    spec: ModuleSpec | None = None
    search_path: Sequence[str] | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, search_path))), None)
        search_path = spec.submodule_search_locations if spec else None
        if search_path is None:  # not a package: it has no submodules
            break
    if spec is None or spec.name != module or not (spec.origin or "").endswith(".py"):
        raise ValueError(f"there is no source of a module {module}; expected package.module.Class")
    return Path(spec.origin or "")
