r"""Mathematics (MATH, arXiv:2103.03874): what stands in the last `\boxed{}` equals the ground truth.

`\frac{1}{2}`, `1/2` and `0.5` are equal, and so are sets, intervals, matrices and equations that say the same:
math-verify decides, in a process of its own, as some expressions take for ever or all memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field

from launcher.core.settings import AtLeastOne, Positive, settings
from launcher.core.user_code import CallFailure
from launcher.rewards.pool import Died, Late, Pool, prompts
from launcher.spec.reward import Answer, DetailedReward, Scores

_BOX = re.compile(r"\\(?:boxed|fbox)(?=\s*\{)")


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
        """An expression that takes too long is wrong, as it is the answer's doing; how often is reported as a part."""
        total, faults, late = [0.0] * len(answers), [""] * len(answers), [0.0] * len(answers)
        asked: dict[int, list[str]] = {}
        for place, answer in enumerate(answers):
            given, truth = self._given(answer.response), _truth(answer.ground_truth)
            if truth is None or given is None:
                continue
            if "".join(given.split()) == "".join(truth.split()):
                total[place] = 1.0
            else:
                asked[place] = [_formula(truth), _formula(given) if self.boxed or boxed(answer.response) else given]
        keys = prompts(answers[place] for place in asked)
        found = self._pool.ask(list(asked.values()), self.timeout_s, keys)
        for place, equal in zip(asked, found, strict=True):
            if isinstance(equal, Late | Died):
                late[place] = 1.0
            elif isinstance(equal, CallFailure):
                faults[place], total[place] = equal.reason, math.nan
            else:
                total[place] = float(equal)
        return Scores(total, {"timed_out": late} if any(late) else {}, faults)

    def unscorable_reason(self, answer: Answer) -> str:
        return "" if (answer.ground_truth or "").strip() else "has no ground truth, which reward Math compares with"

    def reference_response(self, answer: Answer) -> str | None:
        truth = _truth(answer.ground_truth)
        return None if truth is None else self.format_response(truth)

    def format_response(self, text: str) -> str:
        return f"\\boxed{{{text}}}"

    def extract_answer(self, response: str) -> str:
        return "".join((self._given(response) or "").split())

    def _given(self, response: str) -> str | None:
        """What is compared."""
        found = boxed(response)
        return response if found is None and not self.boxed else found

    @cached_property
    def _pool(self) -> Pool:
        return Pool("math", {"memory_bytes": int(self.memory_gb * 2**30)}, self.workers)


def _truth(text: str | None) -> str | None:
    r"""The answer of a ground truth: a bare one, or a whole solution that ends in `\boxed{}` or, as GSM8K's, `####`."""
    return None if text is None else boxed(text) or text.rpartition("####")[2].strip()


def boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{}` or `\fbox{}`; None where its braces do not close, as the answer was cut."""
    starts = [found.end() for found in _BOX.finditer(text)]
    if not starts:
        return None
    opening = text.index("{", starts[-1])
    end = _closing(text, opening)
    return None if end is None else text[opening + 1 : end].strip()


def _closing(text: str, opening: int) -> int | None:
    """Where the brace that opens there closes."""
    depth = 0
    for found in re.finditer(r"\\.|[{}]", text[opening:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return opening + found.start()
    return None


def _formula(text: str) -> str:
    """As math-verify reads it best: in a box of its own a percent sign would be lost on it."""
    return f"${text}$"
