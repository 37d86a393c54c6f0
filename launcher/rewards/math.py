r"""Mathematics (MATH, arXiv:2103.03874): compares the last `\boxed{}` of a response with the ground truth.

`\frac{1}{2}`, `1/2` and `0.5` are equal, as are equivalent sets, intervals, matrices and equations: math-verify
compares them, in a subprocess, as some expressions take unbounded time or memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field

from launcher.core.boxed import boxed
from launcher.core.settings import AtLeastOne, Positive, settings
from launcher.core.user_code import CallFailure
from launcher.rewards.pool import Died, Late, Pool, prompts
from launcher.spec.reward import Answer, DetailedReward, Scores


@settings
class Math(DetailedReward):
    """1.0 when the answer equals the ground truth; otherwise, and when the comparison times out, 0.0."""

    span = 1.0

    boxed: bool = True
    r"""Use the last `\boxed{}` only; false uses the last expression of a response without one."""
    timeout_s: Positive = 5.0
    """Time limit of one comparison, in seconds."""
    workers: AtLeastOne = 2
    """Comparing processes, per training process."""
    memory_gb: Annotated[float, Field(ge=0.5)] = 2.0
    """Address space of each of them, in GiB."""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """Scores [N] of N answers. A comparison that times out scores 0, as the answer causes it; part `timed_out`."""
        total, faults, timed_out = [0.0] * len(answers), [""] * len(answers), [0.0] * len(answers)
        requests: dict[int, list[str]] = {}
        for index, answer in enumerate(answers):
            given, truth = self._expression(answer.response), _truth(answer.ground_truth)
            if truth is None or given is None:
                continue
            if "".join(given.split()) == "".join(truth.split()):
                total[index] = 1.0
            else:
                requests[index] = [_formula(truth), _formula(given) if self.boxed or boxed(answer.response) else given]
        keys = prompts(answers[index] for index in requests)
        results = self._pool.ask(list(requests.values()), self.timeout_s, keys)
        for index, result in zip(requests, results, strict=True):
            if isinstance(result, Late | Died):
                timed_out[index] = 1.0
            elif isinstance(result, CallFailure):
                faults[index], total[index] = result.reason, math.nan
            else:
                total[index] = float(result)
        return Scores(total, {"timed_out": timed_out} if any(timed_out) else {}, faults)

    def unscorable_reason(self, answer: Answer) -> str:
        return "" if (answer.ground_truth or "").strip() else "has no ground truth, which reward Math compares with"

    def reference_response(self, answer: Answer) -> str | None:
        truth = _truth(answer.ground_truth)
        return None if truth is None else self.format_response(truth)

    def format_response(self, text: str) -> str:
        return f"\\boxed{{{text}}}"

    def extract_answer(self, response: str) -> str:
        return "".join((self._expression(response) or "").split())

    def _expression(self, response: str) -> str | None:
        """The expression of a response that is compared; None if there is none."""
        content = boxed(response)
        return response if content is None and not self.boxed else content

    @cached_property
    def _pool(self) -> Pool:
        return Pool("math", {"memory_bytes": int(self.memory_gb * 2**30)}, self.workers)


def _truth(text: str | None) -> str | None:
    r"""The answer of a ground truth: what is in `\boxed{}`; else what follows `####`, as in GSM8K; else all of it."""
    return None if text is None else boxed(text) or text.rpartition("####")[2].strip()


def _formula(text: str) -> str:
    """`text` in dollar signs, which math-verify parses best: in a box it would drop a percent sign."""
    return f"${text}$"
