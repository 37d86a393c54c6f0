"""Checks the reward on the rows: whether it can score them, and scores right answers above empty ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice

from launcher.core import activity
from launcher.core.check_result import CheckResult, Level
from launcher.core.problems import short_repr
from launcher.models import store
from launcher.preflight.checks.context import Context
from launcher.preflight.checks.lengths import token_count
from launcher.preflight.checks.reward_trial import MAX_GUESSED, MAX_SCORED, rows_to_try, try_reward
from launcher.rewards.exact import Exact
from launcher.rewards.model import RewardModel
from launcher.rewards.remote import Remote
from launcher.spec.data import Row, asked, make_answer, needs_rollout
from launcher.spec.reward import MODEL_STYLE, Reward, score_safely, why_unscorable, with_model
from launcher.spec.run import RunSpec

MAX_NAMED = 3  # unscorable rows that are named
MAX_ASKED = 2  # most rows that a server is asked to score
_FORMS_BY_MARK = {"####": ("#### {}", "gsm8k"), "\\boxed": ("\\boxed{{{}}}", "math")}
"""For each mark by which prompts ask for a form of the result: that form, and the reward that reads it."""
_SOLUTION = re.compile(r"####|\\boxed|\n")  # in a ground truth that is more than a final answer


def check(context: Context) -> Iterator[CheckResult]:
    """Check the reward; nothing where it has problems of its own, and without rows only whether its model is here."""
    if context.reward_problems or context.run.environment.scores:
        return
    for leaf in context.run.reward.leaves():
        if isinstance(leaf, RewardModel) and leaf.on_hub and store.find(leaf.path, leaf.revision) is None:
            fix = f"rlrun model download {leaf.path} fetches it now"
            yield CheckResult("WARN", "reward.path", f"{leaf.path} is not here and is downloaded first", fix)
    kind = context.run.algorithm.data
    if answered := [row for row in context.train.rows if needs_rollout(row, "train", kind)]:
        yield from check_scorable(context)
        if context.run.algorithm.sampled:
            held_out = [row for row in context.val.rows if needs_rollout(row, "val", kind)]
            yield from _check_scores(context.run, [*answered, *held_out])
            yield from _check_answer_length(context.run, answered)


def check_scorable(context: Context) -> Iterator[CheckResult]:
    """Check for rows that the reward can never score; the first of each source are named."""
    run = context.run
    rows = [row for row in context.train.rows if needs_rollout(row, "train", run.algorithm.data)]
    bad = [(row, why) for row in rows if (why := why_unscorable(run.reward, make_answer(row)))]
    if not bad:
        return
    all_bad = len(bad) == len(rows)
    level: Level = "WARN" if run.data.on_bad_row == "skip" and not all_bad else "FAIL"
    firsts = {row.data_source: row.where for row, _ in reversed(bad)}
    ordered = sorted(bad, key=lambda entry: entry[0].where != firsts[entry[0].data_source])
    yield from (CheckResult(level, row.where, why) for row, why in ordered[:MAX_NAMED])
    fix = "use another reward or other rows" if all_bad else "use data.on_bad_row=skip"
    if all(row.style == MODEL_STYLE for row, _ in bad):
        fix = "use reward=model reward.path=REWARD_MODEL" if all_bad else with_model(run.reward)
    message = f"{len(bad):,} {context.train.scope} cannot be scored"
    yield CheckResult(level, "reward", message, fix if level == "FAIL" else "")


def _check_scores(run: RunSpec, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check that right answers to the first rows score above others."""
    activity.report("trying the reward")
    reward, name = run.reward, type(run.reward).__name__
    servers = [leaf for leaf in reward.leaves() if isinstance(leaf, Remote)]
    reachable = bool(servers) and not any(leaf.missing_requirements() for leaf in servers)
    n_asked = MAX_ASKED if reachable else 0
    results = list(try_reward(reward, rows, n_asked)) or list(_check_form(reward, rows))
    if not results and isinstance(reward, Exact) and any(map(_is_solution, rows)):
        message = "Exact compares with whole solutions, which no model repeats literally"
        results = [CheckResult("WARN", "reward", message, "use data.format=gsm8k reward=gsm8k, or reward=math")]
    if not results and not n_asked and not any(map(reward.cheap_for, map(make_answer, rows))):
        results = [CheckResult("WARN", "reward", f"{name} is not tried by a plan", "rlrun reward bench tries it")]
    right = "scores right answers to the first rows above empty ones"
    if not reward.uses_ground_truth:
        right = "can score the first rows, and uses no ground truth"
    yield from results or [CheckResult("OK", "reward", f"{name} {right}")]


def _check_answer_length(run: RunSpec, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check that a right answer of median length, in the reward's form, is within the response limit."""
    limit, texts = run.data.max_response_length, list[str]()
    for row in rows[:MAX_SCORED]:
        answer = make_answer(row)
        text = run.reward.reference_response(answer)
        texts.append(run.reward.format_response(answer.ground_truth or "") if text is None else text)
    usual = sorted(texts, key=lambda text: len(text.encode()))[len(texts) // 2] if texts else ""
    # no tokenizer makes more tokens than there are bytes
    if len(usual.encode()) > limit and (tokens := token_count(run, usual) or 0) > limit:
        message = f"a right answer such as {short_repr(usual, 60)} takes {tokens} tokens, and answers end after {limit}"
        yield CheckResult("WARN", "data.max_response_length", message, f"use data.max_response_length={2 * tokens}")


def _check_form(reward: Reward, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check that the reward reads right answers in the form that the prompts ask for."""
    reward = deepcopy(reward)  # processes that the copy starts end with it
    final = [row for row in rows if row.ground_truth and not _is_solution(row)]
    for mark, (form, name) in _FORMS_BY_MARK.items():
        asking = [row for row in final if mark in asked(row)[-1][1]]
        tried = list(islice(rows_to_try(reward, asking), MAX_GUESSED))
        right = [replace(answer, response=f"It follows.\n{form.format(answer.ground_truth)}") for answer in tried]
        wrong = [replace(answer, response="It follows.") for answer in tried]
        high, low = (sum(score_safely(reward, answers).total) for answers in (right, wrong))
        if tried and high <= low:
            got = f"{type(reward).__name__} scores {right[0].response!r} no higher than an answer without a result"
            message = f"the prompts ask for the result with {mark} ({asking[0].where} is the first), and {got}"
            yield CheckResult("WARN", "reward", message, f"use reward={name}, or prompts that ask for another form")
            return


def _is_solution(row: Row) -> bool:
    return bool(_SOLUTION.search(row.ground_truth or ""))
