"""Scores a reward on answers that are known to be right, wrong or nonsense, before a run learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from launcher.config.resolve import resolve
from launcher.core.check_result import CheckResult
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.preflight.checks.reward_trial import KINDS, RewardTrial, awaits_others, judge_trial
from launcher.spec.algorithm import Kind
from launcher.spec.data import OnDataProgress, RefusedRow, Row, make_answer, needs_rollout
from launcher.spec.reward import score_safely
from launcher.spec.run import RunSpec

SHOWN = 20  # answers without a score that are named


@dataclass(frozen=True)
class AnswerKind:
    """The scores of one kind of answer, over the rows that have it; NaN where nothing was scored."""

    name: str
    answers: int
    unscored: int
    mean: float
    low: float
    median: float
    high: float
    zeros: float
    """Share of the scored answers with score 0."""


@dataclass(frozen=True)
class BenchReport:
    reward: str
    rows: int
    kinds: tuple[AnswerKind, ...]
    gold_known: bool
    """Whether the reward says how a right answer looks; otherwise several forms of the ground truth were tried, and
    the best counts."""
    deterministic: bool
    latency_p50_s: float
    latency_p95_s: float
    faults: tuple[str, ...]
    """`file:line: kind: reason` of answers without a score, at most SHOWN."""
    refused: tuple[str, ...]
    """`file:line: reason` of the rows before the last scored one that a run would refuse, at most SHOWN."""
    wrong: tuple[str, ...]
    """Why a run should not learn from the reward."""
    doubts: tuple[str, ...]
    """What a plan warns of, as another form of the right answer may be the one that counts."""

    @property
    def ok(self) -> bool:
        return not self.wrong


def run_of(overrides: Sequence[str], config_dir: Path | None = None) -> RunSpec:
    """The run of these overrides; what a reward does not need (algorithm, model) may be left out."""
    groups = {word.partition("=")[0] for word in overrides}
    defaults = {"algorithm": "algorithm=grpo", "model": "model=tiny"}
    added = [word for group, word in defaults.items() if group not in groups]
    if "algorithm" not in groups and "sampler.n" not in groups:
        added.append("sampler.n=2")
    return resolve([*added, *overrides], config_dir)


def bench(run: RunSpec, count: int, watch: OnDataProgress) -> BenchReport:
    """Score six kinds of answers to the first `count` rows. Raises `Problems` where there is nothing to score."""
    if problems := [*run.data.problems(), *run.reward.problems()]:
        raise Problems(problems)
    run = replace(run, data=run.data.fetched(watch))
    rows, refused = _read_rows(run, count)
    reward, name = run.engine.reward(run), type(run.reward).__name__
    score_safely(reward, [make_answer(rows[0])])  # loading at the first answer does not count as its time
    trial = RewardTrial(reward, [make_answer(row) for row in rows])
    for kind in KINDS:
        trial.score(kind)
    seconds = sorted(one.seconds for one in trial.scored)
    faults = [f"{rows[one.row].where}: {one.kind}: {one.fault}" for one in trial.scored if one.fault]
    chance = trial.changed()
    wrong = [f"{len(faults)} answers have no score"] if faults else []
    results = [*judge_trial(trial)]
    wrong += [chance.message] if chance else _judge(trial, results)
    return BenchReport(
        name, len(rows), tuple(_summary(trial, kind) for kind in KINDS), trial.known, chance is None, median(seconds),
        seconds[math.ceil(len(seconds) * 0.95) - 1], tuple(faults[:SHOWN]),
        tuple(f"{row.where}: {row.reason}" for row in refused[:SHOWN]), tuple(wrong),
        tuple(one.message for one in results if one.level == "WARN"),
    )  # fmt: skip


def _read_rows(run: RunSpec, count: int) -> tuple[list[Row], list[RefusedRow]]:
    """The first `count` rows with a prompt, and the refused rows before the last. Raises `Problems` without any."""
    kind: Kind = run.algorithm.data if run.algorithm.sampled else "prompts"
    rows, refused = list[Row](), list[RefusedRow]()
    for row in run.data.read("train", kind):
        if isinstance(row, RefusedRow):
            refused.append(row)
        elif needs_rollout(row, "train", kind):
            rows.append(row)
        if len(rows) == count:
            break
    if not rows:
        bad_rows = [Problem(row.where, row.reason, code="bad-row") for row in refused[:SHOWN]]
        raise Problems(bad_rows or Problem("data", "no row has a prompt", "use rows with prompts", "bad-row"))
    return rows, refused


def _judge(trial: RewardTrial, results: Sequence[CheckResult]) -> list[str]:
    """Why a run should not learn from the reward, as its scores show."""
    failures = [one.message for one in results if one.level == "FAIL"]
    first, *others = (one.score for one in trial.scored)
    if not failures and all(score == first for score in (first, *others)) and not awaits_others(trial.reward, first):
        failures.append(f"every kind of answer scores {compact(first)}, so nothing can be learnt")
    return failures


def _summary(trial: RewardTrial, name: str) -> AnswerKind:
    scores = [*trial.best(name).values()]
    valid = [score for score in scores if not math.isnan(score)]
    unscored = len(scores) - len(valid)
    if not valid:
        return AnswerKind(name, len(scores), unscored, *[math.nan] * 5)
    zeros = sum(score == 0 for score in valid) / len(valid)
    return AnswerKind(name, len(scores), unscored, fmean(valid), min(valid), median(valid), max(valid), zeros)
