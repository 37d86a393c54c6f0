"""The reward against the rows: whether it can score them, and scores right answers above empty ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from statistics import fmean

from launcher.core.check_result import CheckResult, Level, from_problem
from launcher.core.problems import Problem, short_repr
from launcher.models import store
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.lengths import token_count
from launcher.rewards.exact import Exact
from launcher.rewards.model import RewardModel
from launcher.rewards.python import Python
from launcher.rewards.remote import Remote
from launcher.spec.data import Row, make_answer, needs_rollout
from launcher.spec.reward import MODEL_STYLE, Answer, Reward, score_safely, why_unscorable, with_model
from launcher.spec.run import RunSpec

MAX_NAMED = 3  # rows that cannot be scored and are named
MAX_SCORED, MAX_GUESSED = 16, 4  # rows that are scored, and rows where several forms of the right answer are tried
MAX_ASKED = 2  # rows that a server is asked about
_ASKED = {"####": ("#### {}", "gsm8k"), "\\boxed": ("\\boxed{{{}}}", "math")}
"""Mark in a prompt that asks for a form of the result -> that form, and the reward that reads it."""
_SOLUTION = re.compile(r"####|\\boxed|\n")  # of a ground truth that is more than a final answer


def check(context: Context) -> Iterator[CheckResult]:
    """Nothing where the reward has problems of its own; without rows, only whether its model is here."""
    if context.reward_problems:
        return
    for leaf in context.run.reward.leaves():
        if isinstance(leaf, RewardModel) and leaf.on_hub and store.find(leaf.path, leaf.revision) is None:
            fix = f"rlrun model download {leaf.path} fetches it now"
            yield CheckResult("WARN", "reward.path", f"{leaf.path} is not here and is downloaded first", fix)
    if context.train.rows:
        yield from _unscorable(context)
        if context.run.algorithm.sampled:
            yield _scores(context)
            answered = [row for row in context.train.rows if needs_rollout(row, "train", context.run.algorithm.data)]
            if long := _too_long(context.run, answered):
                yield long


def _unscorable(context: Context) -> Iterator[CheckResult]:
    """Rows that the reward could never score: the first of each source."""
    run, rows = context.run, context.train.rows
    kind = run.algorithm.data
    answered = [row for row in rows if needs_rollout(row, "train", kind)]
    bad = [(row, why) for row in answered if (why := why_unscorable(run.reward, make_answer(row)))]
    if not bad:
        return
    all_bad = len(bad) == len(answered)
    level: Level = "WARN" if run.data.on_bad_row == "skip" and not all_bad else "FAIL"
    firsts = {row.data_source: row.where for row, _ in reversed(bad)}
    named = sorted(bad, key=lambda one: one[0].where != firsts[one[0].data_source])
    yield from (from_problem(Problem(row.where, why, code="bad-row"), level) for row, why in named[:MAX_NAMED])
    fix = "use another reward or other rows" if all_bad else "use data.on_bad_row=skip"
    if all(row.style == MODEL_STYLE for row, _ in bad):
        fix = "use reward=model reward.path=REWARD_MODEL" if all_bad else with_model(run.reward)
    message = f"{len(bad):,} {context.train.scope} cannot be scored"
    yield CheckResult(level, "reward", message, fix if level == "FAIL" else "")


def _scores(context: Context) -> CheckResult:
    """Whether right answers to the first rows score above empty ones."""
    run, rows = context.run, context.train.rows
    name, kind = type(run.reward).__name__, run.algorithm.data
    answered = [row for row in rows if needs_rollout(row, "train", kind)]
    servers = [leaf for leaf in run.reward.leaves() if isinstance(leaf, Remote)]
    remote = bool(servers) and not any(leaf.missing_requirements() for leaf in servers)
    if problem := no_signal(run.reward, answered, MAX_ASKED if remote else 0):
        return from_problem(problem, "WARN" if remote and "so nothing" in problem.got else "FAIL")
    if unread := _asked_form(run.reward, answered):
        return unread
    solutions = (row for row in rows if isinstance(run.reward, Exact) and _SOLUTION.search(row.ground_truth or ""))
    if solution := next(solutions, None):
        message = f"Exact compares with whole solutions, which no model repeats literally (first: {solution.where})"
        return CheckResult("WARN", "reward", message, "use data.format=gsm8k reward=gsm8k, or reward=math")
    if not remote and not any(run.reward.cheap_for(make_answer(row)) for row in answered):
        return CheckResult("WARN", "reward", f"{name} is not tried by a plan", "rlrun reward bench tries it")
    return CheckResult("OK", "reward", f"{name} scores right answers to the first rows above empty ones")


def _too_long(run: RunSpec, rows: Sequence[Row]) -> CheckResult | None:
    """A right answer in the form that the reward asks for, where it is longer than an answer may be."""
    limit, texts = run.data.max_response_length, list[str]()
    for row in rows[:MAX_SCORED]:
        answer = make_answer(row)
        text = run.reward.reference_response(answer)
        texts.append(run.reward.format_response(answer.ground_truth or "") if text is None else text)
    shortest = min(texts, key=lambda text: len(text.encode()), default="")
    if len(shortest.encode()) <= limit:  # no tokenizer makes more tokens
        return None
    tokens = token_count(run, shortest)
    if tokens is None or tokens <= limit:
        return None
    message = f"a right answer such as {short_repr(shortest, 60)} takes {tokens} tokens, and answers end after {limit}"
    return CheckResult("WARN", "data.max_response_length", message, f"use data.max_response_length={2 * tokens}")


def _asked_form(reward: Reward, rows: Sequence[Row]) -> CheckResult | None:
    """Whether the reward reads right answers in the form that the prompts ask for."""
    reward = deepcopy(reward)  # processes that it starts end with the copy
    for mark, (form, name) in _ASKED.items():
        asking = (row for row in rows if mark in _last_text(row) and not _SOLUTION.search(row.ground_truth or "\n"))
        given = [(row, make_answer(row)) for row in islice(asking, MAX_GUESSED)]
        if not given or not all(reward.cheap_for(of) and not reward.unscorable_reason(of) for _, of in given):
            continue
        right = [replace(of, response=f"It follows.\n{form.format(of.ground_truth)}") for _, of in given]
        wrong = [replace(of, response="It follows.") for _, of in given]
        high, low = (sum(score_safely(reward, answers).total) for answers in (right, wrong))
        if high <= low:
            got = f"{type(reward).__name__} scores {right[0].response!r} no higher than an answer without a result"
            message = f"the prompts ask for the result with {mark} ({given[0][0].where} is the first), and {got}"
            return CheckResult("WARN", "reward", message, f"use reward={name}, or prompts that ask for another form")
    return None


def _last_text(row: Row) -> str:
    return row.prompt if isinstance(row.prompt, str) else row.prompt[-1].content


def no_signal(reward: Reward, rows: Sequence[Row], asked: int = 0) -> Problem | None:
    """Why nothing can be learnt from the reward of these rows: no answer has a score, or right answers, each in the
    form that scores best, score no higher than empty ones. Rows that it never scores are left out, and those that cost
    much, but for `asked` rows."""
    reward = deepcopy(reward).on_trial()  # processes that it starts end with the copy
    answers = map(make_answer, rows)
    cheap = (each for each in answers if (asked or reward.cheap_for(each)) and not reward.unscorable_reason(each))
    given = list(islice(cheap, asked or MAX_SCORED))
    if not given:
        return None
    known = any(reward.reference_response(answer) is not None for answer in given)
    given = given if known else given[:MAX_GUESSED]
    golds = [(answer, forms) for answer in given if (forms := gold_forms(reward, answer, known))]
    if not (golds and reward.uses_ground_truth):  # nothing to compare with, but it must be able to score at all
        scores = score_safely(reward, [replace(answer, response=answer.ground_truth or "") for answer in given[:2]])
        return _unscored(reward, scores.faults[0]) if all(scores.faults) else None
    right = score_safely(reward, [replace(answer, response=text) for answer, forms in golds for text in forms])
    empty = score_safely(reward, [replace(answer, response="") for answer, _ in golds])
    totals = iter(right.total)
    best = [max((x for x in islice(totals, len(forms)) if x == x), default=math.nan) for _, forms in golds]
    pairs = [(a, b) for a, b in zip(best, empty.total, strict=True) if not math.isnan(a + b)]
    if not pairs:
        fault = next(fault for fault in (*right.faults, *empty.faults) if fault)
        return _unscored(reward, fault)
    high, low = (fmean(scores) for scores in zip(*pairs, strict=True))
    return None if high > low else _not_above(reward, golds[0][1], known, high, low)


def _unscored(reward: Reward, fault: str) -> Problem:
    fixes = (fix for leaf in reward.leaves() if (fix := leaf.fix_of(fault)))
    return Problem("reward", f"{type(reward).__name__} scores nothing, {fault}", next(fixes, ""))


def _not_above(reward: Reward, forms: Sequence[str], known: bool, high: float, low: float) -> Problem:
    shapes, leaves = ", ".join(repr(text)[:60] for text in forms), list(reward.leaves())
    got = f"{type(reward).__name__} scores right answers ({shapes}, ...) {high:.4g} on average and empty ones {low:.4g}"
    fix = "use a reward that fits the ground truth"
    if not known and any(isinstance(leaf, Python) for leaf in leaves):
        fix = "set reward.form='...{}...' to how a right answer looks, or reward.form= if there is none to compare with"
    elif any(isinstance(leaf, Remote) for leaf in leaves):
        fix = "use a server at reward.url that compares answers with their ground_truth"
    return Problem("reward", f"{got}, so nothing can be learnt", fix)


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
