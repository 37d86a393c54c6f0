"""The class that a config file names, imported only where its source is written for this project.

Importing a module runs it, so a config must not choose any module: its source has to define the class, with a base
class, and to import from this project, as every class with `@settings` does. Nothing is imported to find that out.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Lock
from typing import TypeVar

from launcher.core.files import read_file
from launcher.core.problems import error_message
from launcher.core.user_code import Raised, caught

T = TypeVar("T")
_LOCK = Lock()
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
    if module not in sys.modules and not _may_import(module, name):
        fix = "use a class with a base class, defined in a module that imports from launcher"
        raise ValueError(f"{path} is not of class {base.__name__}; {fix}")
    cls = caught(lambda: getattr(importlib.import_module(module), name))
    if isinstance(cls, Raised):
        error, line = cls.error, cls.own_line
        reason = error_message(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        reason = f"{reason} ({line})" if line else reason
        raise ValueError(f"cannot import {path!r}: {reason}; use a module that can be imported") from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{path} is not of class {base.__name__}; use one that extends it")
    return cls


def _may_import(module: str, name: str) -> bool:
    """Whether a config may import `module` for its class `name`. Raises `ValueError` where there is no such source."""
    file = _source_file(module)
    try:
        statements = ast.parse(read_file(file, LONGEST)).body
    except (OSError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error_message(error)}; use Python that compiles") from error
    imported = [node.module or "" for node in statements if isinstance(node, ast.ImportFrom) and not node.level]
    imported += [alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names]
    extends = any(isinstance(node, ast.ClassDef) and node.name == name and node.bases for node in statements)
    return extends and __package__.partition(".")[0] in (each.partition(".")[0] for each in imported)


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
