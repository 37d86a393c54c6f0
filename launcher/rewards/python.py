"""Your own function: `reward=python reward.path=my.py reward.name=fn`. Functions written for verl need no change:

    def fn(data_source, solution_str, ground_truth, extra_info=None) -> float | dict     # one answer
    def fn(data_sources, solution_strs, ground_truths, extra_infos) -> list              # all answers at once

A dict holds the score under `score`; its other numbers are reported as metrics. The function runs in a subprocess, so
one that hangs, crashes or prints without end costs the answer its score; the run goes on.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from launcher.core.files import expand_user
from launcher.core.problems import Problem, short_repr, suggest
from launcher.core.python_file import PythonFile
from launcher.core.settings import AtLeastOne, Positive, settings
from launcher.core.user_code import CallFailure
from launcher.rewards.pool import Pool, prompts
from launcher.rewards.worker.python import MANY, ONE
from launcher.spec.reward import Answer, DetailedReward, Scores

Function = ast.FunctionDef | ast.AsyncFunctionDef


@settings
class Python(PythonFile, DetailedReward):
    """Scores with a function of a Python file."""

    group = "reward"

    path: str
    """The Python file. A run reads a copy of it and of what it imports from its folder, in RUN/code."""
    name: str = "compute_score"
    """Name of the function."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of each call, stored with the run; the function should read secrets from the environment."""
    form: str | None = None
    """Format of a right answer, `{}` for the ground truth: `Final answer: {}`. A plan refuses a function that does not
    score such answers above empty ones; by default common formats are tried, and "" disables the check, for a function
    that ignores the ground truth."""
    timeout_s: Positive = 10.0
    """Time limit per answer, in seconds; of a function that takes lists, per call."""
    workers: AtLeastOne = 1
    """Processes that call the function, per training process."""
    memory_gb: Positive | None = None
    """Address space of each of them, in GiB; libraries such as torch reserve much more of it than they use."""
    copied_from: str | None = None
    """Where `path` is a run's copy, the folder of the original: files that it opens beside itself are there. Runs set
    it."""

    @property
    def uses_ground_truth(self) -> bool:  # type: ignore[override]  # the base class names a constant
        return self.form != ""

    def reference_response(self, answer: Answer) -> str | None:
        return None if answer.ground_truth is None or not self.form else self.format_response(answer.ground_truth)

    def format_response(self, text: str) -> str:
        return self.form.replace("{}", text) if self.form else text

    def judge(self, answers: Sequence[Answer]) -> Scores:
        entries = self._entries(answers)
        names = dict.fromkeys(name for entry in entries for name in entry["parts"])
        parts = {name: [float(entry["parts"].get(name, math.nan)) for entry in entries] for name in names}
        return Scores([entry["score"] for entry in entries], parts, [entry["wrong"] for entry in entries])

    def fix_of(self, fault: str) -> str:
        return f"use reward.timeout_s={10 * max(self.timeout_s, 1):g}" if "took longer" in fault else ""

    def problems(self) -> list[Problem]:
        problems, tree = list[Problem](), self.parsed()
        if self.form and "{}" not in self.form:
            got, fix = f"{short_repr(self.form)} has no {{}}", "add {} where the ground truth goes"
            problems.append(Problem("reward.form", got, fix))
        if isinstance(tree, list):
            return [*problems, *tree]
        names = dict(bound_names(tree))
        if self.name in names:
            return [*problems, *self._parameter_problems(names[self.name])]
        if "*" not in names:
            functions = [name for name, function in names.items() if function and not name.startswith("_")]
            fix = suggest(self.name, functions, before="reward.name=")
            problems.append(Problem("reward.name", f"{self.path} has no function {self.name!r}", fix))
        return problems

    def on_trial(self) -> Self:
        return replace(self, workers=max(self.workers, 2))  # two at once, as one may never end

    def unaccepted(self) -> tuple[str, ...]:
        """Names in `ONE` that the function does not take; empty for one that is imported or created by a call, whose
        parameters are unknown."""
        accepted, _, accepts_any = self._accepted_parameters or ([], [], True)
        return () if accepts_any else tuple(name for name in ONE if name not in accepted)

    def keys_of(self, answer: Answer) -> frozenset[str] | None:
        """The keys of the dict that the function returns; None where it returns a number, or fails."""
        (entry,) = self._entries([answer])
        keys = entry.get("keys")
        return None if keys is None else frozenset(keys)

    @cached_property
    def _pool(self) -> Pool:
        memory = int(self.memory_gb * 2**30) if self.memory_gb else 0
        path = Path(self.path).expanduser().resolve()
        file = self.original
        settings = {"path": str(path), "file": str(file), "name": self.name, "kwargs": self.kwargs,
                    "memory_bytes": memory}  # fmt: skip
        return Pool("python", settings, self.workers)

    @cached_property
    def _accepted_parameters(self) -> tuple[list[str], list[str], bool] | None:
        """The function's `_parameters`; None where it is imported, or created by a call."""
        function = dict(bound_names(ast.parse(expand_user(self.path).read_bytes()))).get(self.name)
        return _parameters(function) if function else None

    def _entries(self, answers: Sequence[Answer]) -> list[Mapping[str, Any]]:
        """For each answer the result, as `worker/python.py` returns it."""
        takes_lists = self._accepted_parameters is not None and "solution_strs" in self._accepted_parameters[0]
        if takes_lists and len(answers) > 1:
            request = [[answer.node for answer in answers]]
            (scores,) = self._pool.ask(request, self.timeout_s, [f"{answers[0].where} and {len(answers) - 1} more"])
            if not isinstance(scores, CallFailure):
                return scores if len(scores) == len(answers) else [_miscount(scores, len(answers))] * len(answers)
        each = self._pool.ask([[answer.node] for answer in answers], self.timeout_s, prompts(answers))
        return [_fault_entry(results.reason) if isinstance(results, CallFailure)
                else results[0] if len(results) == 1 else _miscount(results, 1) for results in each]  # fmt: skip

    def _parameter_problems(self, function: Function | None) -> list[Problem]:
        """Why its parameters do not fit; a function that is imported or created by a call is not checked."""
        if function is None:
            return []
        params, required, accepts_any = _parameters(function)
        call_names = {*(MANY if "solution_strs" in params else ONE), *self.kwargs}
        missing = [name for name in required if name not in call_names]
        unused = [name for name in self.kwargs if name not in params and not accepts_any]
        place = f"{self.path}:{function.lineno}: {self.name}"
        expected = f"expected {self.name}({', '.join(ONE)})"
        if missing:
            return [Problem("reward.name", f"{place} wants {', '.join(missing)}", expected)]
        if not accepts_any and not {"solution_str", "solution_strs"} & set(params):
            return [Problem("reward.name", f"{place} does not take the answer", expected)]
        return [Problem("reward.kwargs", f"{self.name} takes no {name!r}", suggest(name, params)) for name in unused]


def _fault_entry(reason: str) -> Mapping[str, Any]:
    return {"score": math.nan, "wrong": reason, "parts": {}}


def _miscount(results: Sequence[Any], count: int) -> Mapping[str, Any]:
    return _fault_entry(f"gave {len(results)} scores for {count} answers; expected one for each")


def _parameters(function: Function) -> tuple[list[str], list[str], bool]:
    """Names of parameters, names of required ones, and whether it accepts any keyword argument."""
    node = function.args
    positional = [*node.posonlyargs, *node.args]
    required = [arg.arg for arg in positional[: len(positional) - len(node.defaults)]]
    required += [arg.arg for arg, default in zip(node.kwonlyargs, node.kw_defaults, strict=True) if default is None]
    return [arg.arg for arg in (*node.args, *node.kwonlyargs)], required, node.kwarg is not None


def bound_names(tree: ast.AST) -> Iterator[tuple[str, Function | None]]:
    """Names that the file binds outside of functions and classes, with the function where one is defined; `*` for a
    star import.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node.name, None if node.decorator_list else node
        elif isinstance(node, ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, None
        else:
            yield from bound_names(node)
