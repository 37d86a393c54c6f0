"""Calls a user's reward function as verl does: with one answer at a time, or with lists."""

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
"""Parameters of a function that scores one answer, and the field of an answer for each."""
MANY = {"data_sources": "data_source", "solution_strs": "response", "ground_truths": "ground_truth",
        "extra_infos": "extra_info"}  # fmt: skip
"""The same for a function that scores all answers at once."""


def load(settings: Mapping[str, Any]) -> Callable[[list[dict[str, Any]]], list[Any]]:
    path = Path(settings["path"])
    function = getattr(module_of(path, Path(settings.get("file", path))), settings["name"])
    parameters = inspect.signature(function).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    parameter_fields = MANY if "solution_strs" in parameters else ONE
    used = {name: source for name, source in parameter_fields.items() if accepts_any or name in parameters}

    def call(values: Mapping[str, Any]) -> Any:
        result = function(**values, **settings["kwargs"])
        return asyncio.run(_await_value(result)) if inspect.isawaitable(result) else result

    def score(answers: list[dict[str, Any]]) -> list[Any]:
        if parameter_fields is MANY:
            result = call({name: [answer[source] for answer in answers] for name, source in used.items()})
            return [_score_entry(value) for value in _as_list(result)]
        return [_score_entry(call({name: answer[source] for name, source in used.items()})) for answer in answers]

    return score


def module_of(path: Path, file: Path) -> Any:
    """The file as a module, which can import the files beside it.

    Where `path` is a copy of `file`, all modules are loaded from the copies, but their `__file__` is the original:
    files that they open beside themselves are there, and errors name it.
    """
    sys.path[:0] = dict.fromkeys([str(path.parent), str(file.parent)])
    loader = None
    if path != file:
        of_copies = type("OfCopies", (_FromCopy,), {"copies": str(path.parent), "folder": str(file.parent)})
        loader = of_copies(path.stem, str(path))
        sys.path_hooks.insert(0, partial(_find_in_copies, of_copies))
        sys.path_importer_cache.clear()
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look modules up there
    spec.loader.exec_module(module)
    return module


class _FromCopy(SourceFileLoader):
    """Loads modules of `copies` as if they were in `folder`, where packages also find what was not copied."""

    copies: ClassVar[str]
    folder: ClassVar[str]

    def exec_module(self, module: ModuleType) -> None:
        original = Path(self.folder, Path(self.path).relative_to(self.copies))
        module.__file__ = str(original)
        if hasattr(module, "__path__"):
            module.__path__ = [*module.__path__, str(original.parent)]
        exec(self.source_to_code(self.get_data(self.path), str(original)), vars(module))


def _find_in_copies(of_copies: type[_FromCopy], path: str) -> FileFinder:
    """A hook for `sys.path_hooks`. Raises `ImportError` outside of the copies' folder."""
    if not Path(path).is_relative_to(of_copies.copies):
        raise ImportError(path)
    return FileFinder(path, (of_copies, SOURCE_SUFFIXES))


async def _await_value(awaitable: Any) -> Any:
    return await awaitable


def _as_list(result: Any) -> list[Any]:
    if isinstance(result, str | bytes | Mapping):
        raise TypeError(f"gave a {type(result).__name__}; expected a list of numbers")
    return list(result)


def _score_entry(value: Any) -> dict[str, Any]:
    """A returned value as score, what is wrong with it, and parts, which are the other numbers of a dict; `keys` are
    the names in a dict."""
    is_dict = isinstance(value, Mapping)
    if is_dict and "score" not in value:
        return {"score": None, "wrong": "gave a dict without score; expected a dict with score", "parts": {}}
    score, wrong = number_of(value["score"] if is_dict else value)
    parts = finite_numbers({name: x for name, x in value.items() if name != "score"}) if is_dict else {}
    keys = {"keys": [name for name in value if isinstance(name, str)][:MOST_PARTS]} if is_dict else {}
    return {"score": score, "wrong": wrong, "parts": parts, **keys}


def finite_numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """The finite numbers whose names can be those of metrics, at most MOST_PARTS."""
    numbers = {name: number_of(value)[0] for name, value in values.items() if is_metric_name(name)}
    return dict([(name, number) for name, number in numbers.items() if number == number][:MOST_PARTS])


def number_of(value: Any) -> tuple[float, str]:
    """`to_score` of a value, with True and False, also numpy's, as 1 and 0, as in verl."""
    truth = isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    return to_score(float(value) if truth and isinstance(value, SupportsFloat) else value)
