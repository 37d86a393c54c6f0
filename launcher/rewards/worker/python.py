"""A person's own reward function, as verl calls it: one answer at a time, or lists of everything."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, SupportsFloat

from launcher.spec.reward import is_metric_name, to_score

MOST_PARTS = 32
ONE = {"data_source": "data_source", "solution_str": "response", "ground_truth": "ground_truth",
       "extra_info": "extra_info"}  # fmt: skip
"""Parameters of a function that scores one answer, and what they are given."""
MANY = {"data_sources": "data_source", "solution_strs": "response", "ground_truths": "ground_truth",
        "extra_infos": "extra_info"}  # fmt: skip
"""... of one that scores all answers at once."""


def load(settings: Mapping[str, Any]) -> Callable[[list[dict[str, Any]]], list[Any]]:
    path = Path(settings["path"])
    function = getattr(module_of(path, Path(settings.get("file", path))), settings["name"])
    known = inspect.signature(function).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    given = MANY if "solution_strs" in known else ONE
    taken = {name: source for name, source in given.items() if anything or name in known}

    def call(values: Mapping[str, Any]) -> Any:
        found = function(**values, **settings["kwargs"])
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    def score(answers: list[dict[str, Any]]) -> list[Any]:
        if given is MANY:
            found = call({name: [answer[source] for answer in answers] for name, source in taken.items()})
            return [_plain(value) for value in _listed(found)]
        return [_plain(call({name: answer[source] for name, source in taken.items()})) for answer in answers]

    return score


def module_of(path: Path, file: Path) -> Any:
    """The file as a module; its neighbours can be imported by it.

    Where `path` is a copy of `file`, all of them are loaded from their copies but know the place of the original: what
    they open beside themselves is there, and errors name it.
    """
    sys.path[:0] = dict.fromkeys([str(path.parent), str(file.parent)])
    loader = None
    if path != file:
        of_copies = type("OfCopies", (_FromCopy,), {"copies": str(path.parent), "folder": str(file.parent)})
        loader = of_copies(path.stem, str(path))
        sys.path_hooks.insert(0, partial(_finder, of_copies))
        sys.path_importer_cache.clear()
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look it up there
    spec.loader.exec_module(module)
    return module


class _FromCopy(SourceFileLoader):
    """Loads a module of `copies` as if it were that of `folder`; a package has what was not copied from there."""

    copies: ClassVar[str]
    folder: ClassVar[str]

    def exec_module(self, module: ModuleType) -> None:
        original = Path(self.folder, Path(self.path).relative_to(self.copies))
        module.__file__ = str(original)
        if hasattr(module, "__path__"):
            module.__path__ = [*module.__path__, str(original.parent)]
        exec(self.source_to_code(self.get_data(self.path), str(original)), vars(module))


def _finder(of_copies: type[_FromCopy], path: str) -> FileFinder:
    """A hook of sys.path_hooks for the copies' folders."""
    if not Path(path).is_relative_to(of_copies.copies):
        raise ImportError(path)
    return FileFinder(path, (of_copies, SOURCE_SUFFIXES))


async def _awaited(found: Any) -> Any:
    return await found


def _listed(found: Any) -> list[Any]:
    if isinstance(found, str | bytes | Mapping):
        raise TypeError(f"gave a {type(found).__name__}; expected a list of numbers")
    return list(found)


def _plain(value: Any) -> dict[str, Any]:
    """Score, what is wrong with it, and parts: a dict has the score under `score`, and its other numbers are parts;
    `keys` are the names of what it holds."""
    if not isinstance(value, Mapping):
        score, wrong = number_of(value)
        return {"score": score, "wrong": wrong, "parts": {}}
    if "score" not in value:
        return {"score": None, "wrong": "gave a dict without score; expected a dict with score", "parts": {}}
    score, wrong = number_of(value["score"])
    parts = finite_numbers({name: x for name, x in value.items() if name != "score"})
    keys = [name for name in value if isinstance(name, str)][:MOST_PARTS]
    return {"score": score, "wrong": wrong, "parts": parts, "keys": keys}


def finite_numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Those that can be reported by their names, MOST_PARTS at most."""
    numbers = {name: number_of(value)[0] for name, value in values.items() if is_metric_name(name)}
    return dict([(name, number) for name, number in numbers.items() if number == number][:MOST_PARTS])


def number_of(value: Any) -> tuple[float, str]:
    """True and False count as 1 and 0, as they do in verl; so do numpy's, which are no bool."""
    truth = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    return to_score(float(value) if truth and isinstance(value, SupportsFloat) else value)
