"""What a reward is: it scores finished answers. It knows nothing of tokens or training."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self, SupportsFloat

from launcher.core.problems import Problem, short_repr
from launcher.core.user_code import CallFailure, try_call

MAX_SCORE = 1e6
"""A score further from 0 is a mistake (a sentinel, an overflow): one such answer would drown its whole group."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@-]{0,63}")


@dataclass(frozen=True)
class Answer:
    """One finished answer and what is known of its prompt."""

    response: str
    ground_truth: str | None = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | tuple[tuple[str, str], ...] = ""
    """What was asked: text, or (role, content) of each turn."""


@dataclass(frozen=True)
class Scores:
    """What answers scored, place by place."""

    total: Sequence[float]
    """NaN where there is none."""
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the total is made of, or comes with, by name; NaN for an answer that has no such part."""
    faults: Sequence[str] = ()
    """Why an answer has no score, "" where it has one; empty when all have."""


class Reward(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/reward/<name>.yaml."""

    learned: ClassVar[bool] = False
    """It is a network's opinion and no rule: reports add the two kinds up apart."""
    cheap: ClassVar[bool] = True
    """It may be asked about a few answers before anything starts: it needs no network of either kind, and no minute."""

    uses_ground_truth: ClassVar[bool] = True
    """It looks at the ground truth, so a right answer must score more than an empty one."""

    @abstractmethod
    def score(self, answers: Sequence[Answer]) -> list[float]:
        """One finite number for each answer, higher is better; the order is kept."""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """The scores with their parts and faults, where it has such to tell."""
        return Scores(self.score(answers))

    def unscorable_reason(self, answer: Answer) -> str:
        """Why no response to this prompt could ever be scored; "" where one could. The response does not matter."""
        return ""

    def reference_response(self, answer: Answer) -> str | None:
        """A response to this prompt that should score best; None where the row does not say, or only in some form."""
        return None

    def format_response(self, text: str) -> str:
        """`text` in the form that this reward reads an answer from."""
        return text

    def leaves(self) -> Iterator[Reward]:
        """Itself, or the rewards that it is made of."""
        yield self

    def problems(self) -> list[Problem]:
        """What can be seen to be wrong before anything is loaded."""
        return []

    def cheap_for(self, answer: Answer) -> bool:
        """Whether this answer costs little to score."""
        return self.cheap

    def missing_requirements(self) -> list[Problem]:
        """What it needs that is not there right now, such as its server."""
        return []

    def with_absolute_paths(self) -> Self:
        """The same reward, found from any working folder."""
        return self

    def extract_answer(self, response: str) -> str:
        """What a response comes to: answers that say the same are one when the majority is asked."""
        return response.strip()


def score_safely(reward: Reward, answers: Sequence[Answer]) -> Scores:
    """What the reward says, whatever it does: each answer has a finite total, or NaN and the reason why.

    Where it raises, the answers are asked about one by one, so that only the one at fault is without a score.
    """
    if not answers:
        return Scores([], {}, [])
    found = try_call(lambda: reward.judge(answers))
    if isinstance(found, CallFailure):
        if len(answers) > 1:
            return _joined([score_safely(reward, [answer]) for answer in answers])
        return Scores([math.nan], {}, [found.reason])
    read = try_call(partial(_read, found, len(answers)))
    if isinstance(read, Scores):
        return read
    problem = read.reason if isinstance(read, CallFailure) else read
    return Scores([math.nan] * len(answers), {}, [problem] * len(answers))


def to_score(value: object) -> tuple[float, str]:
    """`value` as a finite float within LIMIT; otherwise NaN and what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        plain = value is None or isinstance(value, str | bool)
        return math.nan, f"gave {short_repr(value, 40) if plain else f'a {type(value).__name__}'}; expected a number"
    found = try_call(lambda: float(value))
    if isinstance(found, CallFailure):
        return math.nan, f"gave a {type(value).__name__}; expected a number"
    if not math.isfinite(found):
        return math.nan, f"gave {found}; expected a finite number"
    if abs(found) > MAX_SCORE:
        return math.nan, f"gave {found:g}; expected a number between {-MAX_SCORE:g} and {MAX_SCORE:g}"
    return found, ""


def is_metric_name(name: object) -> bool:
    """Whether it can be part of a metric's name."""
    return isinstance(name, str) and _PART.fullmatch(name) is not None


def _read(found: object, count: int) -> Scores | str:
    """What a reward gave, made anew as lists of floats and texts; or why that cannot be."""
    if not isinstance(found, Scores):
        return f"gave a {type(found).__name__}; expected one number for each answer"
    columns: dict[str, object] = {"scores": found.total, "faults": found.faults}
    columns |= {f"values of {name}": values for name, values in found.parts.items()}
    for what, values in columns.items():
        if not isinstance(values, Collection) or isinstance(values, str | bytes | Mapping | Set):
            return f"gave a {type(values).__name__} for {what}; expected one for each answer"
        if len(values) != count and not (what == "faults" and len(values) == 0):
            return f"gave {len(values)} {what} for {count} answers; expected one for each"
    numbers = [to_score(value) for value in found.total]
    faults = [str(fault) if fault else "" for fault in found.faults] or [""] * count
    reasons = [fault or reason for fault, (_, reason) in zip(faults, numbers, strict=True)]
    total = [math.nan if reason else value for reason, (value, _) in zip(reasons, numbers, strict=True)]
    parts = {name: [to_score(value)[0] for value in values] for name, values in found.parts.items()}
    return Scores(total, parts, reasons)


def _joined(each: Sequence[Scores]) -> Scores:
    """Scores of single answers as those of all."""
    names = dict.fromkeys(name for scores in each for name in scores.parts)
    parts = {name: [scores.parts.get(name, [math.nan])[0] for scores in each] for name in names}
    return Scores([scores.total[0] for scores in each], parts, [reason for scores in each for reason in scores.faults])
