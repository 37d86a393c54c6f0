"""The format of a response, whatever its content: a regular expression that all of it must match."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property

from launcher.core.problems import Problem, error_message, short_repr
from launcher.core.settings import AtLeastOne, Positive, settings
from launcher.core.user_code import CallFailure
from launcher.rewards.pool import Pool, prompts
from launcher.spec.reward import Answer, DetailedReward, Scores

_UNTAGGED = r"(?:(?!</?think>|</?answer>).)*+"  # text without tags; possessive, so matching takes linear time
THINK_ANSWER = rf"\s*+<think>{_UNTAGGED}</think>\s*+<answer>{_UNTAGGED}</answer>\s*+"
"""DeepSeek-R1's format (arXiv:2501.12948, section 2.2.2): each tag once, with only white space outside."""


@settings
class Format(DetailedReward):
    """1.0 when the whole response matches, otherwise 0.0."""

    span = 1.0

    uses_ground_truth = False

    pattern: str = THINK_ANSWER
    """A Python regular expression; `.` matches line ends, too."""
    timeout_s: Positive = 1.0
    """Time limit per response, in seconds: a pattern may backtrack exponentially."""
    workers: AtLeastOne = 1
    """Matching processes, per training process."""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        matches = self._pool.ask([answer.response for answer in answers], self.timeout_s, prompts(answers))
        faults = [f"reward.pattern {match.reason}" if isinstance(match, CallFailure) else "" for match in matches]
        total = [math.nan if isinstance(match, CallFailure) else float(match) for match in matches]
        return Scores(total, {}, faults)

    def format_response(self, text: str) -> str:
        return f"<think>\n\n</think>\n<answer>{text}</answer>" if self.pattern == THINK_ANSWER else text

    def problems(self) -> list[Problem]:
        try:
            re.compile(self.pattern, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            got = f"{short_repr(self.pattern)} is not a regular expression: {error_message(error)}"
            return [Problem("reward.pattern", got, "use Python's re syntax")]
        return []

    @cached_property
    def _pool(self) -> Pool:
        return Pool("pattern", {"pattern": self.pattern}, self.workers)
