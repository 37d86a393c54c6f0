"""Tests code: the last fenced block of a response runs in a sandbox; its results are compared outside of it.

Formats of a row's ground truth, as JSON or as Python:
    {"inputs": ["1 2\\n"], "outputs": ["3\\n"]}                         a program, from standard input to output
    {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}              a function, or a method of class Solution
    ["assert add(1, 2) == 3", ...]   {"asserts": [...]}                 statements; each assert is a test
    {"test": "def check(candidate): ...", "entry_point": "add"}         a function that tests
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.settings import AtLeastOne, Positive, settings
from launcher.core.user_code import CallFailure
from launcher.rewards.pool import Pool, prompts
from launcher.rewards.worker.tests import counted
from launcher.sandbox import confine
from launcher.spec.reward import Answer, DetailedReward, Scores

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_SOLUTION_KEYS = ("solution", "canonical_solution", "reference_solution")
_ASSERT_KEYS = ("asserts", "assert_case", "test_list")


@dataclass(frozen=True)
class Tests:
    """The tests of a ground truth."""

    count: int
    inputs: tuple[str, ...] = ()
    """Inputs of a program, with its expected `outputs`."""
    outputs: tuple[str, ...] = ()
    payload: Mapping[str, Any] | None = None
    """Tests of a function: the input of the test process; None for a program."""


@settings
class Code(DetailedReward):
    """1.0 when every test passes, otherwise 0.0."""

    span = 1.0

    cheap = False

    partial: bool = False
    """Score the fraction of the tests that pass, instead of all or nothing."""
    timeout_s: Positive = 5.0
    """Time limit of a program on one input, or of all calls of a function, in seconds."""
    memory_mb: Annotated[int, Field(ge=128)] = 512
    """Address space of the tested code, in MiB."""
    workers: AtLeastOne = 4
    """Answers tested in parallel, per training process."""
    sandbox: Literal["kernel", "limits"] = "kernel"
    """`kernel`: no writes, no reads outside Python's own files, no network, no other processes (Landlock and seccomp,
    without root). `limits`: time and memory limits only; the code has your permissions otherwise."""

    def problems(self) -> list[Problem]:
        missing = confine.missing() if self.sandbox == "kernel" else ()
        fix = "use another system, or reward.sandbox=limits, which does not forbid it"
        return [Problem("reward.sandbox", f"this system has no {name}", fix, "not-supported") for name in missing]

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Scores [N] of N answers. Code that hangs, raises or kills its process fails its tests; NaN, with the fault,
        is only for answers that could not be tested.
        """
        faults = [self.unscorable_reason(answer) for answer in answers]
        total = [math.nan] * len(answers)
        tests = {index: tests_of(answer.ground_truth or "")
                 for index, answer in enumerate(answers) if not faults[index]}  # fmt: skip
        programs = {index: tests_ for index, tests_ in tests.items() if tests_.payload is None}
        functions = {index: tests_ for index, tests_ in tests.items() if tests_.payload is not None}
        results = self._run_programs(answers, programs) | self._run_functions(answers, functions)
        for index, passed in results.items():
            if isinstance(passed, CallFailure):
                faults[index] = passed.reason
            else:
                count = tests[index].count
                total[index] = passed / count if self.partial else float(passed == count)
        return Scores(total, {}, faults)

    def unscorable_reason(self, answer: Answer) -> str:
        if not answer.ground_truth:
            return "has no ground truth, which for reward Code holds the tests"
        try:
            tests_of(answer.ground_truth)
        except ValueError as error:
            return f"ground truth {error}"
        return ""

    def reference_response(self, answer: Answer) -> str | None:
        """The row's own solution (extra_info.solution), where it has one."""
        solutions = (answer.extra_info.get(name) for name in _SOLUTION_KEYS)
        code = next((code for code in solutions if isinstance(code, str) and code.strip()), None)
        return None if code is None else self.format_response(code_of(code))

    def format_response(self, text: str) -> str:
        return f"```python\n{text}\n```"

    def extract_answer(self, response: str) -> str:
        return code_of(response).strip()

    @cached_property
    def _pool(self) -> Pool:
        limits = {"timeout_s": self.timeout_s, "cpu_s": math.ceil(self.timeout_s) + 1,
                  "memory_bytes": self.memory_mb * 2**20, "strict": self.sandbox == "kernel"}  # fmt: skip
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
        return Pool("code", limits, self.workers, {**env, "PYTHONHASHSEED": "0"})

    def output_of(self, program: str) -> tuple[str, str] | CallFailure:
        """The output of a program, and what went wrong, such as `took longer than 5 s` ("" if nothing)."""
        (runs,) = self._pool.ask([{"code": program, "inputs": [""], "all": True}], self._time_limit(1))
        return runs if isinstance(runs, CallFailure) else (runs[0]["out"], runs[0]["why"])

    def _run_programs(self, answers: Sequence[Answer], tests: Mapping[int, Tests]) -> dict[int, int | CallFailure]:
        """Passed tests by answer. Without `partial`, programs that fail their first test do not run the others."""
        passed_counts: dict[int, int | CallFailure] = dict.fromkeys(tests, 0)
        rounds = [(0, None)] if self.partial else [(0, 1), (1, None)]
        for start, end in rounds:
            indices = [index for index in tests if passed_counts[index] == start and tests[index].inputs[start:end]]
            requests = [{"code": code_of(answers[index].response), "inputs": tests[index].inputs[start:end],
                         "all": self.partial} for index in indices]  # fmt: skip
            limit = self._time_limit(max((len(tests[index].inputs) for index in indices), default=0))
            keys = prompts(answers[index] for index in indices)
            for index, runs in zip(indices, self._pool.ask(requests, limit, keys), strict=True):
                if isinstance(runs, CallFailure):
                    passed_counts[index] = runs
                    continue
                expected = tests[index].outputs[start:end]
                passed = [not run["why"] and equal_output(run["out"], text)
                          for run, text in zip(runs, expected, strict=False)]  # fmt: skip
                passed_counts[index] = start + sum(passed)
        return passed_counts

    def _run_functions(self, answers: Sequence[Answer], by_index: Mapping[int, Tests]) -> dict[int, int | CallFailure]:
        with tempfile.TemporaryDirectory(prefix="rlrun-tests-") as folder:
            requests = []
            for index, tests in by_index.items():
                file = Path(folder) / f"{index}.json"
                file.write_text(json.dumps(tests.payload), encoding="utf-8")
                requests.append({"code": code_of(answers[index].response), "tests": str(file)})
            results = self._pool.ask(requests, self._time_limit(1), prompts(answers[index] for index in by_index))
        return {index: result if isinstance(result, CallFailure) else result.count("1")
                for index, result in zip(by_index, results, strict=True)}  # fmt: skip

    def _time_limit(self, runs: int) -> float:
        """Seconds after which a worker is killed; it ends each run after `timeout_s` by itself."""
        return runs * self.timeout_s + 30.0


def code_of(response: str) -> str:
    """The last fenced block, which ends with the response if it is not closed; the whole response if there is no
    fence."""
    marks = list(_FENCE.finditer(response))
    if not marks:
        return response
    last = len(marks) - 1 if len(marks) % 2 else len(marks) - 2
    end = marks[last + 1].start() if last + 1 < len(marks) else len(response)
    return response[marks[last].end() + 1 : end]


def equal_output(printed: str, expected: str) -> bool:
    """Equal line by line, without trailing blanks; decimal numbers may differ by 1e-6, relative or absolute."""
    lines, expected_lines = (text.strip().splitlines() for text in (printed, expected))
    return len(lines) == len(expected_lines) and all(map(_equal_line, lines, expected_lines))


def _equal_line(line: str, expected: str) -> bool:
    if line.rstrip() == expected.rstrip():
        return True
    words, expected_words = line.split(), expected.split()
    return len(words) == len(expected_words) and all(map(_equal_word, words, expected_words))


def _equal_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in expected:
        return False
    try:
        number, expected_number = float(word), float(expected)
    except ValueError:
        return False
    return abs(number - expected_number) <= 1e-6 * max(1.0, abs(expected_number))


@lru_cache(maxsize=4096)
def tests_of(truth: str) -> Tests:
    """The tests of a ground truth. Raises `ValueError` for one without valid tests."""
    try:
        node = json.loads(truth)
    except ValueError:
        return _tests_from_statements(truth)
    if isinstance(node, dict) and "inputs" in node:
        return _tests_from_pairs(node)
    if isinstance(node, dict) and isinstance(node.get("test"), str) and isinstance(node.get("entry_point"), str):
        return _tests_from_statements(f"{node['test']}\ncheck({node['entry_point']})")
    if isinstance(node, dict):
        node = next((node[name] for name in _ASSERT_KEYS if name in node), None)
    if isinstance(node, list) and node and all(isinstance(line, str) for line in node):
        return _tests_from_statements("\n".join(node))
    raise ValueError(f"{short_repr(truth, 40)} holds no tests; expected inputs and outputs, or asserts")


def _tests_from_pairs(node: Mapping[str, Any]) -> Tests:
    inputs, outputs = node["inputs"], node.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise ValueError("holds no pairs; expected two lists, inputs and outputs, of one length")
    if name := node.get("fn_name"):
        calls = [_test_call(input_, output) for input_, output in zip(inputs, outputs, strict=True)]
        return Tests(len(calls), payload={"name": name, "calls": calls})
    return Tests(len(inputs), tuple(map(_join_lines, inputs)), tuple(map(_join_lines, outputs)))


def _join_lines(lines: Any) -> str:
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def _test_call(input_: Any, output: Any) -> list[Any]:
    """Arguments and expected result: values, or both as texts of JSON, with one argument on each line."""
    if not isinstance(input_, str):
        return [input_ if isinstance(input_, list) else [input_], output]
    try:
        arguments = [json.loads(line) for line in input_.splitlines() if line.strip()]
        return [arguments, json.loads(output) if isinstance(output, str) else output]
    except ValueError as error:
        raise ValueError(f"holds {short_repr(input_, 30)} -> {short_repr(output, 30)}, which is not JSON") from error


def _tests_from_statements(text: str) -> Tests:
    shown = short_repr(text, 40)
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shown} is neither JSON nor Python, {error_message(error)}; expected tests") from error
    count = sum(map(counted, tree.body))
    if not count:
        raise ValueError(f"{shown} holds no tests; expected asserts")
    return Tests(count, payload={"text": text})
