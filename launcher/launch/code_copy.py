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
"""Of one copy."""


def keep(part: Part, folder: Folder) -> tuple[Part, list[str]]:
    """The reward or the environment that reads its copies in `folder`, with paths relative to it, and why a file has
    none."""
    notes = list[str]()

    def kept(leaf: PythonFile) -> Any:
        path = Path(leaf.path)
        files = list(_fit(imported(path.parent, [path]), notes))
        if path not in files:
            return leaf
        copy = _copied(path.parent, files, folder.code / leaf.group).relative_to(folder.path)
        found: Any = leaf
        return replace(found, path=str(copy / path.name), copied_from=str(leaf.original.parent))

    return replace_each(part, PythonFile, kept), notes


def changes(run: RunSpec, folder: Folder) -> list[str]:
    """What has changed of the files that were copied, and which version is read now."""
    notes = list[str]()

    def look(leaf: PythonFile) -> Any:
        file, here = Path(leaf.path), folder.path.absolute()
        if leaf.copied_from and file.is_relative_to(here) and (files := _changed(file.parent, Path(leaf.copied_from))):
            copy = file.relative_to(here)
            notes.append(f"{files} since the run began; it goes on with its copy, which you may change: {copy}")
        return leaf

    for part in (run.reward, run.environment):
        replace_each(part, PythonFile, look)
    return notes


def imported(folder: Path, files: Sequence[Path]) -> list[Path]:
    """`files`, and those of `folder` that they import, directly or by way of others, as their source says."""
    found, waiting = dict[Path, None](), list(files)
    while waiting and len(found) < MOST_FILES:
        path = waiting.pop()
        if path not in found and path.is_file():
            found[path] = None
            waiting += [place for name in _imports(path, folder) for place in _places(folder, name)]
    return list(found)


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
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = [*above, *(node.module.split(".") if node.module else ())]
            yield from ([*module, alias.name] for alias in node.names)


def _places(folder: Path, name: list[str]) -> Iterator[Path]:
    """Where a module may be, and the packages above it."""
    for depth in range(1, len(name) + 1):
        place = folder.joinpath(*name[:depth])
        yield from (place.with_name(f"{place.name}.py"), place / "__init__.py")


def _fit(files: Iterable[Path], notes: list[str]) -> Iterator[Path]:
    """Those that may be copied: no secrets, and no more than MOST_FILES and MOST_BYTES."""
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


def _copied(source: Path, files: Sequence[Path], first: Path) -> Path:
    """The folder with copies of these files of `source`, `first` or one beside it; one that is there already where it
    is equal."""
    for number in count(1):
        copy = first if number == 1 else first.with_name(f"{first.name}-{number}")
        if not os.path.lexists(copy):
            for path in files:
                target = copy / path.relative_to(source)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            return copy
        there = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file() and not copy.is_symlink()}
        if there == {path.relative_to(source) for path in files} and not _changed(copy, source):
            return copy
    raise AssertionError("there is always another number")


def _changed(copy: Path, source: Path) -> str:
    """Which of the copied files are different in `source` now: `my.py and 2 others have changed`."""
    names = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file() and path.suffix != ".pyc")
    found = [name for name in names if not _same(copy / name, source / name)]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{source / found[0]}{more} {'have' if more else 'has'} changed or gone"


def _same(one: Path, other: Path) -> bool:
    try:
        return read_file(one, MOST_BYTES) == read_file(other, MOST_BYTES)
    except (OSError, ValueError):
        return False
