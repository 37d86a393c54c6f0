"""The class that a config file names, imported only when its source says that it is of the right kind.

To import a module is to run it, so a config must not choose any. A user's own class is accepted where its source, or
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
MOST = 16  # classes between the named one and the required one
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
    with _LOCK:
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
    found = caught(lambda: getattr(importlib.import_module(module), name))
    if isinstance(found, Raised):
        error, line = found.error, found.own_line
        reason = error_message(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        reason = f"{reason} ({line})" if line else reason
        raise ValueError(f"cannot import {path!r}: {reason}; use a module that can be imported") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    return found


def _may_run(module: str, name: str, base: type) -> bool:
    """Whether importing `module` is what a config may ask for: its source says that the class extends `base`.

    Raises `ValueError` where there is no such source.
    """
    waiting, seen = [f"{module}.{name}"], set[str]()
    while waiting and len(seen) < MOST:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        module, _, name = path.rpartition(".")
        if module not in sys.modules:
            waiting += [parent for parent in _bases(module, name) if "." in parent]
        elif isinstance(found := vars(sys.modules[module]).get(name), type) and issubclass(found, base):
            return True
    return False


def _bases(module: str, name: str) -> list[str]:
    """`module.Class` of what a class extends, and of where the module imports that name from, as its source says.

    Raises `ValueError` where the module has no source.
    """
    file = _source(module)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found, names = list[str](), dict[str, str]()
    for node in _parsed(file).body:
        if isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # more dots than packages
                of = resolve_name("." * node.level + (node.module or ""), package)
                names |= {alias.asname or alias.name: f"{of}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds `a`
                of = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or of] = of
        elif isinstance(node, ast.ClassDef):
            if node.name == name:
                found += filter(None, (_full(base, names) for base in node.bases))
            names[node.name] = f"{module}.{node.name}"
    own = f"{module}.{name}"
    return found if names.get(name, own) == own else [*found, names[name]]


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(read_file(file, LONGEST))
    except (OSError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error_message(error)}; use Python that compiles") from error


def _full(base: ast.expr, names: dict[str, str]) -> str:
    """What an expression such as `reward.Reward` or `Generic[T]` names; empty where that is not known."""
    if isinstance(base, ast.Subscript):
        return _full(base.value, names)
    if isinstance(base, ast.Attribute):
        of = _full(base.value, names)
        return f"{of}.{base.attr}" if of else ""
    return names.get(base.id, "") if isinstance(base, ast.Name) else ""


def _source(module: str) -> Path:
    """A module's file. Unlike `importlib.util.find_spec`, it runs no package on the way there."""
    spec: ModuleSpec | None = None
    places: Sequence[str] | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, places))), None)
        places = spec.submodule_search_locations if spec else None
        if places is None:  # no package: nothing is below it
            break
    if spec is None or spec.name != module or not (spec.origin or "").endswith(".py"):
        raise ValueError(f"there is no source of a module {module}; expected package.module.Class")
    return Path(spec.origin or "")
