"""Code that is tested: the last fenced block of a response runs in a sandbox, and what it does is compared outside.

What a row's ground truth may be, as JSON or as it stands:
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
_SOLUTIONS = ("solution", "canonical_solution", "reference_solution")
_LISTS = ("asserts", "assert_case", "test_list")


@dataclass(frozen=True)
class Tests:
    """The tests of a ground truth."""

    count: int
    inputs: tuple[str, ...] = ()
    """Inputs of a program, with its expected `outputs`."""
    outputs: tuple[str, ...] = ()
    payload: Mapping[str, Any] | None = None
    """For a function: the input of the test process."""


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
    max_tests: AtLeastOne | None = None
    """Use only this many of the first tests of each row."""
    sandbox: Literal["kernel", "limits"] = "kernel"
    """`kernel`: no writes, no reads outside Python's own files, no network, no other processes (Landlock and seccomp,
    without root). `limits`: time and memory limits only; the code has your permissions otherwise."""

    def problems(self) -> list[Problem]:
        absent = confine.missing() if self.sandbox == "kernel" else ()
        fix = "use another system, or reward.sandbox=limits, which does not forbid it"
        return [Problem("reward.sandbox", f"this system has no {lack}", fix, "not-supported") for lack in absent]

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Code that hangs, breaks or kills its process has failed its tests; without a score are only answers that
        could not be tested.
        """
        faults = [self.unscorable_reason(answer) for answer in answers]
        total = [math.nan] * len(answers)
        tests = {place: tests_of(answer.ground_truth or "", self.max_tests)
                 for place, answer in enumerate(answers) if not faults[place]}  # fmt: skip
        programs = {place: of for place, of in tests.items() if of.payload is None}
        functions = {place: of for place, of in tests.items() if of.payload is not None}
        results = self._programs(answers, programs) | self._functions(answers, functions)
        for place, passed in results.items():
            if isinstance(passed, CallFailure):
                faults[place] = passed.reason
            else:
                count = tests[place].count
                total[place] = passed / count if self.partial else float(passed == count)
        return Scores(total, {}, faults)

    def unscorable_reason(self, answer: Answer) -> str:
        if not answer.ground_truth:
            return "has no ground truth, which for reward Code holds the tests"
        try:
            tests_of(answer.ground_truth, self.max_tests)
        except ValueError as error:
            return f"ground truth {error}"
        return ""

    def reference_response(self, answer: Answer) -> str | None:
        """The row's own solution (extra_info.solution), where it has one."""
        found = (answer.extra_info.get(name) for name in _SOLUTIONS)
        code = next((code for code in found if isinstance(code, str) and code.strip()), None)
        return None if code is None else self.format_response(code_of(code))

    def format_response(self, text: str) -> str:
        return f"```python\n{text}\n```"

    def extract_answer(self, response: str) -> str:
        return code_of(response).strip()

    @cached_property
    def _pool(self) -> Pool:
        limits = {"timeout_s": self.timeout_s, "cpu_s": math.ceil(self.timeout_s) + 1,
                  "memory_bytes": self.memory_mb * 2**20, "strict": self.sandbox == "kernel"}  # fmt: skip
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
        return Pool("code", limits, self.workers, {**kept, "PYTHONHASHSEED": "0"})

    def output_of(self, program: str) -> tuple[str, str] | CallFailure:
        """What a program prints, and what was wrong with it, such as `took longer than 5 s`."""
        (runs,) = self._pool.ask([{"code": program, "inputs": [""], "all": True}], self._time_limit(1))
        return runs if isinstance(runs, CallFailure) else (runs[0]["out"], runs[0]["why"])

    def _programs(self, answers: Sequence[Answer], wanted: Mapping[int, Tests]) -> dict[int, int | CallFailure]:
        """How many tests passed. Where all must, those that fail the first are asked for no more."""
        found: dict[int, int | CallFailure] = dict.fromkeys(wanted, 0)
        rounds = [(0, None)] if self.partial else [(0, 1), (1, None)]
        for start, end in rounds:
            open_ = [place for place in wanted if found[place] == start and wanted[place].inputs[start:end]]
            requests = [{"code": code_of(answers[place].response), "inputs": wanted[place].inputs[start:end],
                         "all": self.partial} for place in open_]  # fmt: skip
            limit = self._time_limit(max((len(wanted[place].inputs) for place in open_), default=0))
            keys = prompts(answers[place] for place in open_)
            for place, runs in zip(open_, self._pool.ask(requests, limit, keys), strict=True):
                if isinstance(runs, CallFailure):
                    found[place] = runs
                    continue
                expected = wanted[place].outputs[start:end]
                same = [not run["why"] and equal_output(run["out"], text)
                        for run, text in zip(runs, expected, strict=False)]  # fmt: skip
                found[place] = start + sum(same)
        return found

    def _functions(self, answers: Sequence[Answer], wanted: Mapping[int, Tests]) -> dict[int, int | CallFailure]:
        with tempfile.TemporaryDirectory(prefix="rlrun-tests-") as folder:
            requests = []
            for place, tests in wanted.items():
                file = Path(folder) / f"{place}.json"
                file.write_text(json.dumps(tests.payload), encoding="utf-8")
                requests.append({"code": code_of(answers[place].response), "tests": str(file)})
            found = self._pool.ask(requests, self._time_limit(1), prompts(answers[place] for place in wanted))
        return {place: one if isinstance(one, CallFailure) else one["passed"].count("1")
                for place, one in zip(wanted, found, strict=True)}  # fmt: skip

    def _time_limit(self, runs: int) -> float:
        """Seconds after which a test process is killed; it ends each run after `timeout_s` itself."""
        return runs * self.timeout_s + 30.0


def code_of(response: str) -> str:
    """The last fenced block, up to the end of the response where it is not closed; the whole response where there is
    none."""
    marks = list(_FENCE.finditer(response))
    if not marks:
        return response
    last = len(marks) - 1 if len(marks) % 2 else len(marks) - 2
    end = marks[last + 1].start() if last + 1 < len(marks) else len(response)
    return response[marks[last].end() + 1 : end]


def equal_output(printed: str, expected: str) -> bool:
    """Equal line by line, up to trailing blanks; decimal numbers may differ in their last digits."""
    ours, theirs = (text.strip().splitlines() for text in (printed, expected))
    return len(ours) == len(theirs) and all(map(_equal_line, ours, theirs))


def _equal_line(ours: str, theirs: str) -> bool:
    if ours.rstrip() == theirs.rstrip():
        return True
    one, other = ours.split(), theirs.split()
    return len(one) == len(other) and all(map(_equal_word, one, other))


def _equal_word(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    if "." not in theirs:
        return False
    try:
        a, b = float(ours), float(theirs)
    except ValueError:
        return False
    return abs(a - b) <= 1e-6 * max(1.0, abs(b))


@lru_cache(maxsize=4096)
def tests_of(truth: str, most: int | None = None) -> Tests:
    """The tests of a ground truth. Raises `ValueError`, whose text says what is wrong with it."""
    try:
        node = json.loads(truth)
    except ValueError:
        return _statements(truth, most)
    if isinstance(node, dict) and "inputs" in node:
        return _pairs(node, most)
    if isinstance(node, dict) and isinstance(node.get("test"), str) and isinstance(node.get("entry_point"), str):
        return _statements(f"{node['test']}\ncheck({node['entry_point']})", most)
    if isinstance(node, dict):
        node = next((node[name] for name in _LISTS if name in node), None)
    if isinstance(node, list) and node and all(isinstance(line, str) for line in node):
        return _statements("\n".join(node[:most]), most)
    raise ValueError(f"{short_repr(truth, 40)} holds no tests; expected inputs and outputs, or asserts")


def _pairs(node: Mapping[str, Any], most: int | None) -> Tests:
    inputs, outputs = node["inputs"], node.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise ValueError("holds no pairs; expected two lists, inputs and outputs, of one length")
    inputs, outputs = inputs[:most], outputs[:most]
    if name := node.get("fn_name"):
        calls = [_call(given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
        return Tests(len(calls), payload={"name": name, "calls": calls})
    return Tests(len(inputs), tuple(map(_text, inputs)), tuple(map(_text, outputs)))


def _text(lines: Any) -> str:
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def _call(given: Any, wanted: Any) -> list[Any]:
    """Arguments and what they should give: as they are, or both as texts of JSON, with one argument on each line."""
    if not isinstance(given, str):
        return [given if isinstance(given, list) else [given], wanted]
    try:
        args = [json.loads(line) for line in given.splitlines() if line.strip()]
        return [args, json.loads(wanted) if isinstance(wanted, str) else wanted]
    except ValueError as error:
        raise ValueError(f"holds {short_repr(given, 30)} -> {short_repr(wanted, 30)}, which is not JSON") from error


def _statements(text: str, most: int | None) -> Tests:
    shown = short_repr(text, 40)
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shown} is neither JSON nor Python, {error_message(error)}; expected tests") from error
    tests = [node for node in tree.body if counted(node)]
    if not tests:
        raise ValueError(f"{shown} holds no tests; expected asserts")
    if most and len(tests) > most:
        after = {id(node) for node in tests[most:]}
        text = ast.unparse(ast.Module([node for node in tree.body if id(node) not in after], []))
    return Tests(min(len(tests), most or len(tests)), payload={"text": text})
