"""RUN/code: copies of a run's own Python files, so that it can be read, resumed and repeated after they have changed.

code/reward/        the file of `reward=python` and what it imports from its folder: the run reads these copies
code/environment/   the same of `environment=python`
Copies of other folders' files stand beside them: reward-2, ...
"""

from __future__ import annotations

import ast
import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from launcher.core.files import read_file
from launcher.core.problems import error_message
from launcher.core.python_file import PythonFile
from launcher.core.redaction import redact
from launcher.rewards.combined import replace_each
from launcher.runs.folder import Folder
from launcher.spec.run import RunSpec

Part = TypeVar("Part")

MOST_FILES, MOST_BYTES = 500, 16 * 2**20
"""Most files that are copied, and most bytes of one."""


def keep(part: Part, folder: Folder) -> tuple[Part, list[str]]:
    """Copies the Python files of a reward or an environment into `folder`. Returns the part with paths of the copies,
    relative to `folder`, and notes on the files that have none."""
    notes, copies = list[str](), dict[Path, Path]()

    def with_copy(leaf: PythonFile) -> Any:
        path = Path(leaf.path)
        obstacles = {file: _obstacle(file) for file in imported(path.parent, [path])}
        fate = "the run's folder has no copy of it, and it is read where it is"
        notes.extend(f"plan: {file} {obstacle}; {fate}" for file, obstacle in obstacles.items() if obstacle)
        if obstacles.get(path, "is no file"):
            return leaf
        copy = copies.setdefault(path.parent, _new_copy(folder.code, leaf.group))
        for file in (file for file, obstacle in obstacles.items() if not obstacle):
            target = copy / file.relative_to(path.parent)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        untyped: Any = leaf
        relative = copy.relative_to(folder.path) / path.name
        return replace(untyped, path=str(relative), copied_from=str(leaf.original.parent))

    return replace_each(part, PythonFile, with_copy), notes


def changes(run: RunSpec, folder: Folder) -> list[str]:
    """A note on each copy whose original has changed since; the run reads the copy."""
    notes = list[str]()

    def note_changes(leaf: PythonFile) -> Any:
        file, here = Path(leaf.path), folder.path.absolute()
        if leaf.copied_from and file.is_relative_to(here) and (names := _changed(file.parent, Path(leaf.copied_from))):
            fix = f"it goes on with its copy, which you may change: {file.relative_to(here)}"
            notes.append(f"{', '.join(names)}: changed or gone since the run began; {fix}")
        return leaf

    for part in (run.reward, run.environment):
        replace_each(part, PythonFile, note_changes)
    return notes


def imported(folder: Path, files: Sequence[Path]) -> list[Path]:
    """`files`, and those of `folder` that they import, directly or by way of others, as their source says."""
    sources, pending = dict[Path, None](), list(files)
    while pending and len(sources) < MOST_FILES:
        path = pending.pop()
        if path not in sources and path.is_file():
            sources[path] = None
            pending += [file for name in _imports(path, folder) for file in _module_paths(folder, name)]
    return list(sources)


def _imports(path: Path, folder: Path) -> Iterator[list[str]]:
    """The modules that a file imports, part by part, as seen from `folder`; each name after `from` may be one."""
    tree: ast.AST = ast.Module([], [])
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        tree = ast.parse(read_file(path, MOST_BYTES))
    package = path.relative_to(folder).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent_package = package[: len(package) - node.level + 1] if node.level else ()
            module = [*parent_package, *(node.module.split(".") if node.module else ())]
            yield from ([*module, alias.name] for alias in node.names)


def _module_paths(folder: Path, name: list[str]) -> Iterator[Path]:
    """Paths that a module, and the packages above it, may have."""
    for depth in range(1, len(name) + 1):
        path = folder.joinpath(*name[:depth])
        yield from (path.with_name(f"{path.name}.py"), path / "__init__.py")


def _obstacle(path: Path) -> str:
    """Why a file is not copied; empty where it can be."""
    try:
        text = read_file(path, MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        return f"cannot be copied, {error_message(error)}"
    return "seems to hold a secret, which belongs in an environment variable" if redact(text) != text else ""


def _new_copy(folder: Path, group: str) -> Path:
    """The folder `group`, or `group-2` and so on, that nobody has made yet."""
    paths = (folder / (group if number == 1 else f"{group}-{number}") for number in count(1))
    return next(path for path in paths if not os.path.lexists(path))


def _changed(copy: Path, source: Path) -> list[str]:
    """The originals in `source` that are not as they were copied."""
    names = [str(path.relative_to(copy)) for path in sorted(copy.rglob("*.py"))]
    _, differing, missing = filecmp.cmpfiles(copy, source, names, shallow=False)
    return [str(source / name) for name in (*differing, *missing)]
