"""A trial of the reward on the first rows: answers that are right, empty, wrong, as long as they may be, or of various
kinds, and whether a model could learn from the differences of their scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from statistics import fmean

from launcher.core.check_result import CheckResult, Level, from_problem
from launcher.core.problems import Problem, short_repr
from launcher.preflight.checks.lengths import token_count
from launcher.rewards.combined import Weighted
from launcher.rewards.exact import Exact
from launcher.rewards.format import Format
from launcher.rewards.length import Length, Overlong
from launcher.rewards.python import Python
from launcher.rewards.remote import Remote
from launcher.spec.data import Row, make_answer
from launcher.spec.reward import Answer, Reward, score_safely
from launcher.spec.run import RunSpec

MAX_SCORED, MAX_GUESSED = 16, 4  # rows that are scored, and rows where several forms of the right answer are tried
QUICK_S = 0.5  # of a reward that takes longer for a few answers nothing else is tried
LONGEST = 10_000  # characters of a long answer
_WORDS = (
    "information",
    "government",
    "development",
    "international",
    "organization",
    "responsibility",
    "communication",
)
"""One token each in the vocabularies of most models, so hardly an answer has more characters per token."""
_KINDS = (
    "Yes.", "42", "I think that it is about seven, but I am not sure. Why do you ask?", "- one\n- two\n\n**THREE**",
    "```python\nprint(1 + 1)\n```", '{"answer": [1, 2]}', "So \\boxed{7}\n#### 7", "¿Qué? 你好 🙂",
    "<think>\nOne and one.\n</think>\n<answer>2</answer>", " ".join(_WORDS * 4),
)  # fmt: skip
"""Answers that differ in form, in language and in length."""

Scored = list[list[float]]
"""By row and by form; NaN where there is no score."""


@dataclass
class _Golds:
    """Rows, the forms of a right answer to each, and their scores."""

    answers: list[Answer]
    forms: list[list[str]]
    known: bool
    """Whether the reward says how a right answer looks; otherwise the usual forms are tried."""
    scores: Scored = field(default_factory=list)

    def scored(self, reward: Reward, answers: Sequence[Answer]) -> tuple[Scored, Sequence[str]]:
        """The forms as responses to `answers`: scores and faults."""
        pairs = zip(answers, self.forms, strict=True)
        found = score_safely(reward, [replace(answer, response=text) for answer, forms in pairs for text in forms])
        totals = iter(found.total)
        return [list(islice(totals, len(forms))) for forms in self.forms], found.faults

    def distinct(self) -> _Golds:
        """Those with a score whose ground truths differ."""
        scored = [n for n, scores in enumerate(self.scores) if any(x == x for x in scores)]
        firsts = {(self.answers[n].ground_truth or "").strip().casefold(): n for n in reversed(scored)}
        kept = sorted(firsts.values())
        forms, scores = [self.forms[n] for n in kept], [self.scores[n] for n in kept]
        return _Golds([self.answers[n] for n in kept], forms, self.known, scores)


def trial(run: RunSpec, rows: Sequence[Row], asked: int = 0) -> Iterator[CheckResult]:
    """Why nothing, or something else than what is right, would be learnt from these rows. Rows that the reward never
    scores are left out, and those that cost much, but for `asked` rows."""
    reward = deepcopy(run.reward).on_trial()  # processes that it starts end with the copy
    yield from _out_of_reach(run)
    answers = map(make_answer, rows)
    cheap = (each for each in answers if (asked or reward.cheap_for(each)) and not reward.unscorable_reason(each))
    given = list(islice(cheap, asked or MAX_SCORED))
    if not given:
        return
    known = any(reward.reference_response(answer) is not None for answer in given)
    forms = [(answer, _forms(reward, answer, known)) for answer in (given if known else given[:MAX_GUESSED])]
    golds = _Golds([of for of, texts in forms if texts], [texts for _, texts in forms if texts], known)
    if golds.answers and reward.uses_ground_truth:
        yield from _right(run, reward, golds, bool(asked))
    else:  # nothing to compare with, but it must be able to score at all
        scores = score_safely(reward, [replace(answer, response=answer.ground_truth or "") for answer in given[:2]])
        if all(scores.faults):
            yield _unscored(reward, scores.faults[0])
            return
    if not asked:
        yield from _all_alike(reward, given[0])


def _right(run: RunSpec, reward: Reward, golds: _Golds, asked: bool) -> Iterator[CheckResult]:
    """Right answers, each in the form that scores best, must score above empty ones, and above other answers."""
    empty = score_safely(reward, [replace(answer, response="") for answer in golds.answers])
    begin = time.monotonic()
    golds.scores, faults = golds.scored(reward, golds.answers)
    quick = not asked and time.monotonic() - begin < QUICK_S
    best = [max((x for x in scores if x == x), default=math.nan) for scores in golds.scores]
    pairs = [(a, b) for a, b in zip(best, empty.total, strict=True) if not math.isnan(a + b)]
    if not pairs:
        yield _unscored(reward, next(fault for fault in (*faults, *empty.faults) if fault))
        return
    high, low = (fmean(scores) for scores in zip(*pairs, strict=True))
    weights = reward.weight_by_name().values()
    suspect = min(weights) < 0 or not all(_own(leaf) for leaf in reward.leaves())
    if quick and suspect:
        texts = [
            replace(of, response=text) for of, forms in zip(golds.answers, golds.forms, strict=True) for text in forms
        ]
        change, result = _rescored(reward, texts, [score for scores in golds.scores for score in scores])
        yield from result
        if result and change >= abs(high - low):  # a comparison would be chance
            return
    if high <= low:
        yield _not_above(
            reward,
            golds,
            f"{high:.4g} on average and empty ones {low:.4g}, so nothing can be learnt",
            "WARN" if asked else "FAIL",
        )
        return
    if min(weights) > 0 and isinstance(reward, Weighted):
        yield from _excluded(reward, golds)
    if quick and suspect:
        yield from _compared(run, reward, golds)
    elif quick and any(isinstance(leaf, Length | Overlong) for leaf in reward.leaves()):
        yield from _long(run, reward, golds, 0)


def _excluded(reward: Weighted, golds: _Golds) -> Iterator[CheckResult]:
    """Whether a right answer in the form of all parts scores less than in that of one: another does not read it."""
    pairs = [(scores[0], max(scores), forms) for scores, forms in zip(golds.scores, golds.forms, strict=True)]
    if not golds.known or any(math.isnan(whole + best) or whole >= best for whole, best, _ in pairs):
        return
    whole, best, forms = pairs[0]
    single = forms[golds.scores[0].index(best)]
    got = f"a right answer in the form of all parts, {short_repr(forms[0], 60)}, scores {whole:.4g}"
    got = f"{got}, and {short_repr(single, 60)} {best:.4g}"
    names = {name: "math" if isinstance(part, Exact) else name for name, part in reward.parts.items()}
    weights = ",".join(f"{names[name]}:{weight:g}" for name, weight in reward.weight_by_name().items())
    fix = f"use 'reward.parts={{{weights}}}'" if "math" in names.values() else "use parts that read each other's form"
    yield CheckResult("WARN", "reward.parts", f"{got}, so one part works against another", fix)


def _own(leaf: Reward) -> bool:
    """Whether it is a rule of this package, which tells right answers from wrong ones, always in the same way."""
    return type(leaf).__module__.startswith("launcher.") and not isinstance(leaf, Python)


def _rescored(
    reward: Reward, answers: Sequence[Answer], scores: Sequence[float]
) -> tuple[float, Sequence[CheckResult]]:
    """By how much scores change when the same answers are scored again; 0.0 where that is rounding."""
    again = _quickly(reward, answers)
    pairs = zip(answers, scores, again or [], strict=bool(again))
    differ = [(abs(a - b), a, b, answer.response) for answer, a, b in pairs if not math.isclose(a, b, rel_tol=1e-3)]
    change, a, b, text = max((one for one in differ if one[0] > 1e-6), default=(0.0, 0.0, 0.0, ""))
    if not change:
        return 0.0, []
    message = f"{type(reward).__name__} scored the answer {short_repr(text, 40)} {a:.4g}, and {b:.4g} when asked again"
    fix = "return the same score for the same answer, without random numbers or state"
    return change, [CheckResult("WARN", "reward", f"{message}, so chance is learnt", fix)]


def _quickly(reward: Reward, answers: Sequence[Answer]) -> list[float] | None:
    """Their scores; None where that takes long, or one has none."""
    scores, begin = list[float](), time.monotonic()
    for answer in answers:
        scores += score_safely(reward, [answer]).total
        if time.monotonic() - begin > QUICK_S or math.isnan(scores[-1]):
            return None
    return scores


def _compared(run: RunSpec, reward: Reward, golds: _Golds) -> Iterator[CheckResult]:
    """The right answers against the same texts as answers to other rows, where they are wrong."""
    golds, name = golds.distinct(), type(reward).__name__
    if len(golds.answers) < 2:
        return
    wrong, _ = golds.scored(reward, [*golds.answers[1:], golds.answers[0]])
    above, below = [], list[tuple[float, float, str]]()
    for form in range(min(map(len, golds.forms))):
        pairs = [(of[form], other[form]) for of, other in zip(golds.scores, wrong, strict=True)]
        pairs = [pair for pair in pairs if not math.isnan(sum(pair))]
        high, low = (fmean(scores) for scores in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        if math.isclose(high, low, rel_tol=1e-6, abs_tol=1e-9):
            continue
        if high > low:
            above.append((high, form))
        else:
            below.append((high, low, golds.forms[0][form]))
    if above:
        yield from _long(run, reward, golds, min(above)[1])
    elif below:
        high, low, text = below[0]
        got = (
            f"{name} scores right answers ({short_repr(text, 60)}, ...) {high:.4g} on average and wrong ones {low:.4g}"
        )
        fix = _positive(reward) or "give right answers the higher score"
        yield CheckResult("FAIL" if golds.known else "WARN", "reward", f"{got}, so the wrong ones are learnt", fix)
    else:
        score = f"{fmean(x for scores in golds.scores for x in scores if x == x):.4g}"
        yield _not_above(
            reward, golds, f"as high as wrong ones, {score} on average, so what is right is not learnt", "WARN"
        )


def _long(run: RunSpec, reward: Reward, golds: _Golds, form: int) -> Iterator[CheckResult]:
    """Long wrong answers, up to the limit, against the right ones in the form of that number."""
    words = " ".join(_WORDS)
    rows = [
        (answer, forms[form], scores[form])
        for answer, forms, scores in zip(golds.answers, golds.forms, golds.scores, strict=True)
        if not math.isnan(scores[form]) and (answer.ground_truth or "").casefold() not in words
    ][:MAX_GUESSED]
    if not rows:
        return
    right = fmean(score for _, _, score in rows)
    low, text = right, ""
    reach = run.data.max_response_length * len(words) // len(_WORDS)
    for most in (reach, 0):  # tokens are counted only where that matters
        most = min(most or longest(run), LONGEST)
        texts = [_words(most // part) for part in (1, 2, 4, 8, 16)]
        scores = _quickly(reward, [replace(answer, response=text) for text in texts for answer, _, _ in rows])
        if scores is None:
            return
        means = [fmean(scores[n : n + len(rows)]) for n in range(0, len(scores), len(rows))]
        low, text = max(zip(means, texts, strict=True), key=lambda one: one[0])
        if low <= right:
            return
    got = f"{type(reward).__name__} scores a wrong answer of {len(text):,} characters {low:.4g} on average"
    message = f"{got} and a right one such as {short_repr(rows[0][1], 40)} {right:.4g}, so length is learnt"
    sizes = [name for name, part in _parts(reward) if isinstance(part, Length | Overlong)]
    fix = "give length less weight, or a bound, than what is right"
    if isinstance(reward, Weighted) and sizes:
        part = sizes[0].rpartition(".")[2]
        fix = f"use reward.weights.{part}={abs(reward.weight_by_name()[part]) / 10:g}"
    yield CheckResult("WARN", "reward", message, fix)


# ---- rewards, or parts of them, that do not look at the ground truth


def _all_alike(reward: Reward, answer: Answer) -> Iterator[CheckResult]:
    """A format that everything has, and a reward without a ground truth that gives all answers the same."""
    answers = [replace(answer, response=text) for text in _KINDS]
    parts = [(where, part) for where, part in _parts(reward) if isinstance(part, Format)]
    for where, part in parts:
        if set(score_safely(part, answers).total) == {1.0}:
            got = f"{short_repr(part.pattern)} matches each of {len(answers)} different answers, so it tells none apart"
            yield CheckResult("WARN", f"{where}.pattern", got, f"use {where}.pattern='<answer>.*</answer>'")
    sized = any(isinstance(leaf, Length | Overlong) for leaf in reward.leaves())
    if parts or sized or reward.uses_ground_truth:
        return
    scores = _quickly(reward, answers)
    if scores is None:
        return
    yield from _rescored(reward, answers, scores)[1]
    if len(set(scores)) == 1:
        got = (
            f"{type(reward).__name__} scores {len(answers)} different answers, short and long ones, all {scores[0]:.4g}"
        )
        fix = "give answers that differ in what is to be learnt different scores"
        yield CheckResult("WARN", "reward", f"{got}; if others score the same, nothing can be learnt", fix)


def _out_of_reach(run: RunSpec) -> Iterator[CheckResult]:
    """Lengths that no answer can have, as it ends after data.max_response_length tokens."""
    limit = run.data.max_response_length
    for where, part in _parts(run.reward):
        if not isinstance(part, Length | Overlong):
            continue
        far = part.longest - part.buffer if isinstance(part, Overlong) else part.low if part.low > 1 else part.high
        if far < limit:  # tokens have a character each, or more
            continue
        most = limit if part.unit == "words" else longest(run)
        ends = f"answers end after {limit:,} tokens, which hold at most about {most:,} {part.unit}"
        if isinstance(part, Length) and part.low > most:
            score = max(1.0 - (part.low - most) / part.margin, 0.0)
            got = f"no answer has {part.low:,} {part.unit} and scores more than {score:.2g}: {ends}"
            fix = f"use {where}.low={most // 2}, or a larger data.max_response_length"
            yield CheckResult("WARN", f"{where}.low", got, fix)
        elif where == "reward" and isinstance(part, Length) and part.low <= 1 and part.high >= most:
            got = f"each answer scores 1, as none is longer than {part.high:,} {part.unit}: {ends}"
            yield CheckResult("WARN", f"{where}.high", got, f"use reward.high={max(most // 2, 1)}")
        elif where == "reward" and isinstance(part, Overlong) and part.longest - part.buffer >= most:
            got = f"each answer scores 0, as none is longer than {part.longest - part.buffer:,} {part.unit}: {ends}"
            fix = f"use reward.longest={most} reward.buffer={max(most // 4, 1)}"
            yield CheckResult("WARN", f"{where}.longest", got, fix)


def _parts(reward: Reward) -> Iterator[tuple[str, Reward]]:
    """Where its settings are, and the reward; of a weighted sum those that count."""
    if not isinstance(reward, Weighted):
        yield "reward", reward
        return
    weights = reward.weight_by_name()
    yield from ((f"reward.parts.{name}", part) for name, part in reward.parts.items() if weights[name])


def longest(run: RunSpec) -> int:
    """Characters of an answer of long words that is as long as it may be."""
    sample = _words(500)
    tokens = token_count(run, sample) or len(sample.split())
    return run.data.max_response_length * len(sample) // tokens


def _words(characters: int) -> str:
    return " ".join(islice(cycle(_WORDS), characters // 5 + 1))[:characters]


# ---- what is wrong, and the forms of right answers


def _unscored(reward: Reward, fault: str) -> CheckResult:
    fixes = (fix for leaf in reward.leaves() if (fix := leaf.fix_of(fault)))
    return from_problem(Problem("reward", f"{type(reward).__name__} scores nothing, {fault}", next(fixes, "")))


def _not_above(reward: Reward, golds: _Golds, scores: str, level: Level) -> CheckResult:
    shapes, leaves = ", ".join(repr(text)[:60] for text in golds.forms[0]), list(reward.leaves())
    got = f"{type(reward).__name__} scores right answers ({shapes}, ...) {scores}"
    fix = _positive(reward) or "use a reward that fits the ground truth"
    if not golds.known and any(isinstance(leaf, Python) for leaf in leaves):
        fix = "set reward.form='...{}...' to how a right answer looks, or reward.form= if there is none to compare with"
    elif any(isinstance(leaf, Remote) for leaf in leaves):
        fix = "use a server at reward.url that compares answers with their ground_truth"
    return CheckResult(level, "reward", got, fix)


def _positive(reward: Reward) -> str:
    """The argument for the first part that lowers the score; empty where none does."""
    negative = [name for name, weight in reward.weight_by_name().items() if weight < 0]
    return f"use reward.weights.{negative[0]}=1" if negative else ""


def _forms(reward: Reward, answer: Answer, known: bool) -> list[str]:
    """The right answer in the form of the reward; of a sum also in that of each part, as one may not read another's."""
    parts = [leaf.reference_response(answer) for leaf in reward.leaves()] if known else []
    return list(dict.fromkeys([*gold_forms(reward, answer, known), *(text for text in parts if text is not None)]))


def gold_forms(reward: Reward, answer: Answer, known: bool) -> list[str]:
    """The right answer; where the reward does not say how that looks, the ground truth in the usual forms."""
    if known:
        reference_answer = reward.reference_response(answer)
        return [] if reference_answer is None else [reference_answer]
    truth = answer.ground_truth
    if truth is None:
        return []
    forms = (reward.format_response(truth), truth, f"#### {truth}", f"\\boxed{{{truth}}}", f"<answer>{truth}</answer>")
    return list(dict.fromkeys(forms))
