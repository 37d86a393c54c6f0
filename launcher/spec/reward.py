"""Interface of rewards: they score finished answers, and are independent of tokens and training."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self, SupportsFloat

from launcher.core.problems import short_repr
from launcher.core.user_code import CallFailure, try_call
from launcher.spec.part import Part

MAX_SCORE = 1e6
"""Scores with a larger absolute value are errors (a sentinel, an overflow): one such answer would dominate its whole
group."""

MODEL_STYLE = "model"
"""reward_model.style, as in verl, of rows that a model scores; any other (rule, rule-lighteval/MATH_v2) is a rule's."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@-]{0,63}")


def truth_text(value: Any) -> str | None:
    """A ground truth as the text that rules compare with and pages show: itself, or its JSON. Raises `TypeError` or
    `ValueError` for a value that JSON cannot hold."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Answer:
    """One finished answer, with its prompt and the row's fields."""

    response: str
    ground_truth: str | None = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | tuple[tuple[str, str], ...] = ""
    """What was asked: text, or (role, content) of each turn."""
    style: str = ""
    """The row's reward_model.style: `model`, or that of a rule; empty where the row has none."""
    where: str = ""
    """The row's place: `train.jsonl:1204`."""
    typed_truth: Any = None
    """The ground truth where it is a number, true or false, a list or an object, and not a text; `ground_truth` is its
    JSON."""

    @property
    def node(self) -> dict[str, Any]:
        """The fields that a function or a service receives; the ground truth has its type in the row."""
        fields = asdict(self)
        truth = fields.pop("typed_truth")
        return fields if truth is None else {**fields, "ground_truth": truth}

    @property
    def asks_model(self) -> bool:
        """Whether a model scores it: by its style or, where that is empty, as there is no ground truth."""
        return self.style == MODEL_STYLE if self.style else self.ground_truth is None


@dataclass(frozen=True)
class Scores:
    """Scores of a list of answers, in the same order."""

    total: Sequence[float]
    """NaN where an answer has no score."""
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Named components of the total, or values reported with it; NaN for an answer without that part."""
    faults: Sequence[str] = ()
    """Why an answer has no score, "" where it has one; empty when all have."""


class Reward(Part, ABC):
    """Subclass it, decorate with @settings, and name the class in conf/reward/<name>.yaml."""

    learned: ClassVar[bool] = False
    """Whether a network scores, instead of a rule; reports summarize the two kinds separately."""
    cheap: ClassVar[bool] = True
    """Whether it can score a few answers before the start: fast, without a network connection or a neural network."""

    span: ClassVar[float | None] = None
    """Highest minus lowest score, where that is known."""
    uses_ground_truth: ClassVar[bool] = True
    """Whether it uses the ground truth, so that a right answer must score more than an empty one."""

    @abstractmethod
    def score(self, answers: Sequence[Answer]) -> list[float]:
        """One finite number for each answer, higher is better; the order is kept."""

    def judge(self, answers: Sequence[Answer]) -> Scores:
        """The scores with their parts and faults, if it has any."""
        return Scores(self.score(answers))

    def unscorable_reason(self, answer: Answer) -> str:
        """Why no response to this prompt can be scored; "" where one can. The response is ignored."""
        return ""

    def weight_by_name(self) -> dict[str, float]:
        """Part, as `reward.parts` names it, -> its weight in the total."""
        return {type(self).__name__.lower(): 1.0}

    def reference_response(self, answer: Answer) -> str | None:
        """A response to this prompt that should get the best score; None if the row does not contain one."""
        return None

    def format_response(self, text: str) -> str:
        """`text` in the format from which this reward extracts an answer."""
        return text

    def leaves(self) -> Iterator[Reward]:
        """Itself, or the rewards it combines."""
        yield self

    def fix_of(self, fault: str) -> str:
        """The fix where no answer has a score because of `fault`; empty where none is known."""
        return ""

    def on_trial(self) -> Self:
        """The same reward for a few answers before the start, with short timeouts where it has long ones."""
        return self

    def cheap_for(self, answer: Answer) -> bool:
        """Whether this answer costs little to score."""
        return self.cheap

    def extract_answer(self, response: str) -> str:
        """The final answer in a response; a majority vote counts responses with equal final answers together."""
        return response.strip()


class DetailedReward(Reward):
    """A reward whose scores have parts or faults: it defines `judge` instead of `score`."""

    def score(self, answers: Sequence[Answer]) -> list[float]:
        return list(self.judge(answers).total)

    @abstractmethod
    def judge(self, answers: Sequence[Answer]) -> Scores:
        """The scores with their parts and faults."""


def score_safely(reward: Reward, answers: Sequence[Answer]) -> Scores:
    """Score with any reward: each answer gets a finite total, or NaN and the reason.

    Where the reward raises, the answers are scored one by one, so that only the failing one is without a score.
    """
    if not answers:
        return Scores([], {}, [])
    result = try_call(lambda: reward.judge(answers))
    if isinstance(result, CallFailure):
        if len(answers) > 1:
            return _concatenate([score_safely(reward, [answer]) for answer in answers])
        return Scores([math.nan], {}, [result.reason])
    checked = try_call(partial(_check_scores, result, len(answers)))
    if isinstance(checked, Scores):
        return checked
    problem = checked.reason if isinstance(checked, CallFailure) else checked
    return Scores([math.nan] * len(answers), {}, [problem] * len(answers))


def why_unscorable(reward: Reward, answer: Answer) -> str:
    """Why no response to this prompt can be scored, or is scored by a rule where the row asks for a model; else ""."""
    reason = reward.unscorable_reason(answer)
    if answer.style != MODEL_STYLE or (not reason and any(leaf.learned for leaf in reward.leaves())):
        return reason
    if not reward.unscorable_reason(replace(answer, ground_truth=None)):  # needs no truth, so it may be any judge
        return reason
    got = f"reward_model.style is model, and reward {type(reward).__name__} compares with a ground truth"
    return f"{got}; {with_model(reward)}"


def with_model(rules: Reward) -> str:
    """The arguments for a reward that combines these rules with a model."""
    parts = ",".join(f"{name}:{weight:g}" for name, weight in {**rules.weight_by_name(), "model": 1.0}.items())
    return f"use reward=by_style 'reward.parts={{{parts}}}' reward.parts.model.path=REWARD_MODEL"


def to_score(value: object) -> tuple[float, str]:
    """`value` as a finite float within MAX_SCORE; otherwise NaN and the reason."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        plain = value is None or isinstance(value, str | bool)
        return math.nan, f"gave {short_repr(value, 40) if plain else f'a {type(value).__name__}'}; expected a number"
    number = try_call(lambda: float(value))
    if isinstance(number, CallFailure):
        return math.nan, f"gave a {type(value).__name__}; expected a number"
    if not math.isfinite(number):
        return math.nan, f"gave {number}; expected a finite number"
    if abs(number) > MAX_SCORE:
        return math.nan, f"gave {number:g}; expected a number between {-MAX_SCORE:g} and {MAX_SCORE:g}"
    return number, ""


def is_metric_name(name: object) -> bool:
    """Whether it can be part of a metric's name."""
    return isinstance(name, str) and _PART.fullmatch(name) is not None


def _check_scores(result: object, count: int) -> Scores | str:
    """A reward's result for `count` answers as lists of floats and texts; or, as a text, what is wrong with it."""
    if not isinstance(result, Scores):
        return f"gave a {type(result).__name__}; expected one number for each answer"
    if wrong := _wrong_columns(result, count):
        return wrong
    numbers = [to_score(value) for value in result.total]
    faults = [str(fault) if fault else "" for fault in result.faults] or [""] * count
    reasons = [fault or reason for fault, (_, reason) in zip(faults, numbers, strict=True)]
    total = [math.nan if reason else value for reason, (value, _) in zip(reasons, numbers, strict=True)]
    parts = {name: [to_score(value)[0] for value in values] for name, values in result.parts.items()}
    return Scores(total, parts, reasons)


def _wrong_columns(scores: Scores, count: int) -> str:
    """What is wrong with the number of values that a reward gave for `count` answers; "" if nothing is."""
    columns: dict[str, object] = {"scores": scores.total, "faults": scores.faults}
    columns |= {f"values of {name}": values for name, values in scores.parts.items()}
    for what, values in columns.items():
        if not isinstance(values, Collection) or isinstance(values, str | bytes | Mapping | Set):
            return f"gave a {type(values).__name__} for {what}; expected one for each answer"
        if len(values) != count and not (what == "faults" and len(values) == 0):
            return f"gave {len(values)} {what} for {count} answers; expected one for each"
    return ""


def _concatenate(each: Sequence[Scores]) -> Scores:
    """Scores of single answers, concatenated."""
    names = dict.fromkeys(name for scores in each for name in scores.parts)
    parts = {name: [scores.parts.get(name, [math.nan])[0] for scores in each] for name in names}
    return Scores([scores.total[0] for scores in each], parts, [reason for scores in each for reason in scores.faults])
