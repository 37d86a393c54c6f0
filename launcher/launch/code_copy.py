"""RUN/code: copies of a run's own Python files, so that it can be read, resumed and repeated after they have changed.

code/reward/        the file of `reward=python` and what it imports from its folder: the run reads these copies
code/environment/   the same of `environment=python`
Copies of other folders' files stand beside them: reward-2, ...
"""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
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
"""Limits of one copy."""


def keep(part: Part, folder: Folder) -> tuple[Part, list[str]]:
    """Copies the Python files of a reward or an environment into `folder`. Returns the part with paths of the copies,
    relative to `folder`, and notes on the files that have none."""
    notes = list[str]()

    def with_copy(leaf: PythonFile) -> Any:
        path = Path(leaf.path)
        files = list(_select_files(imported(path.parent, [path]), notes))
        if path not in files:
            return leaf
        copy = _copy_files(path.parent, files, folder.code / leaf.group).relative_to(folder.path)
        untyped: Any = leaf
        return replace(untyped, path=str(copy / path.name), copied_from=str(leaf.original.parent))

    return replace_each(part, PythonFile, with_copy), notes


def changes(run: RunSpec, folder: Folder) -> list[str]:
    """A note on each copy whose original has changed since; the run reads the copy."""
    notes = list[str]()

    def note_changes(leaf: PythonFile) -> Any:
        file, here = Path(leaf.path), folder.path.absolute()
        if leaf.copied_from and file.is_relative_to(here) and (files := _changed(file.parent, Path(leaf.copied_from))):
            copy = file.relative_to(here)
            notes.append(f"{files} since the run began; it goes on with its copy, which you may change: {copy}")
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


def _select_files(files: Iterable[Path], notes: list[str]) -> Iterator[Path]:
    """The files that may be copied: without secrets, and at most MOST_FILES and MOST_BYTES of them."""
    number = size = 0
    for path in files:
        try:
            content = read_file(path, MOST_BYTES)
            text = content.decode("utf-8", "replace")
            why = "seems to hold a secret, which belongs in an environment variable" if redact(text) != text else ""
        except (OSError, ValueError) as error:
            content, why = b"", f"cannot be copied, {error_message(error)}"
        if number == MOST_FILES or size + len(content) > MOST_BYTES:
            notes.append(f"plan: no more than {MOST_FILES} files and {MOST_BYTES >> 20} MiB of own code are copied")
            return
        if why:
            notes.append(f"plan: {path} {why}; the run's folder has no copy of it, and it is read where it is")
        else:
            number, size = number + 1, size + len(content)
            yield path


def _copy_files(source: Path, files: Sequence[Path], first: Path) -> Path:
    """Copies these files of `source` into `first`, or a folder beside it where that holds others. Equal copies that
    exist are used again."""
    for number in count(1):
        copy = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if not os.path.lexists(copy):
            for path in files:
                target = copy / path.relative_to(source)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            return copy
        copied = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file() and not copy.is_symlink()}
        if copied == {path.relative_to(source) for path in files} and not _changed(copy, source):
            return copy
    raise AssertionError("there is always another number")


def _changed(copy: Path, source: Path) -> str:
    """Which of the copied files are different in `source` now: `my.py and 2 others have changed`."""
    names = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file() and path.suffix != ".pyc")
    changed = [name for name in names if not _equal_files(copy / name, source / name)]
    if not changed:
        return ""
    others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{source / changed[0]}{others} {'have' if others else 'has'} changed or gone"


def _equal_files(one: Path, other: Path) -> bool:
    try:
        return read_file(one, MOST_BYTES) == read_file(other, MOST_BYTES)
    except (OSError, ValueError):
        return False
