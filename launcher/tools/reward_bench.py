"""What a reward makes of answers that are known to be right, wrong or nonsense, before a run learns from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from launcher.config.resolve import resolve
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.preflight.checks.reward_trial import KINDS, RewardTrial, awaits_others, judge_trial
from launcher.spec.algorithm import Kind as Taken
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
    """Share of the scored answers."""


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
    """Why it should not be learnt from."""

    @property
    def ok(self) -> bool:
        return not self.wrong


def run_of(overrides: Sequence[str], config_dir: Path | None = None) -> RunSpec:
    """The run of these overrides; what a reward does not need (algorithm, model) may be left out."""
    named = {word.partition("=")[0] for word in overrides}
    spare = {"algorithm": "algorithm=grpo", "model": "model=tiny"}
    more = [word for group, word in spare.items() if group not in named]
    if "algorithm" not in named and "sampler.n" not in named:
        more.append("sampler.n=2")
    return resolve([*more, *overrides], config_dir)


def bench(run: RunSpec, count: int, watch: OnDataProgress) -> BenchReport:
    """Score six kinds of answers to the first `count` rows. Raises `Problems` where there is nothing to score."""
    if lines := [*run.data.problems(), *run.reward.problems()]:
        raise Problems(lines)
    run = replace(run, data=run.data.prepared(_taken_as(run), watch))
    refused = list[RefusedRow]()
    rows = list(islice(_rows(run, refused), count))
    if not rows:
        named = [Problem(row.where, row.reason, code="bad-row") for row in refused[:SHOWN]]
        raise Problems(named or Problem("data", "no row has a prompt", "use rows with prompts", "bad-row"))
    reward, name = run.engine.reward(run), type(run.reward).__name__
    score_safely(reward, [make_answer(rows[0])])  # what is loaded at the first answer is no answer's time
    trial = RewardTrial(reward, [make_answer(row) for row in rows])
    for kind in KINDS:
        trial.score(kind)
    seconds = sorted(one.seconds for one in trial.scored)
    faults = [f"{rows[one.row].where}: {one.kind}: {one.fault}" for one in trial.scored if one.fault]
    chance = trial.changed()
    wrong = [f"{len(faults)} answers have no score"] if faults else []
    wrong += [chance.message] if chance else _judge(trial)
    return BenchReport(
        name, len(rows), tuple(_kind(trial, kind) for kind in KINDS), trial.known, chance is None, median(seconds),
        seconds[math.ceil(len(seconds) * 0.95) - 1], tuple(faults[:SHOWN]),
        tuple(f"{row.where}: {row.reason}" for row in refused[:SHOWN]), tuple(wrong),
    )  # fmt: skip


def _judge(trial: RewardTrial) -> list[str]:
    """Why the reward should not be learnt from, as its scores show."""
    found = [one.message for one in judge_trial(trial) if one.level == "FAIL"]
    first, *others = (score for of in trial.scores.values() for row in of for score in row)
    if not found and all(score == first for score in (first, *others)) and not awaits_others(trial.reward, first):
        found.append(f"every kind of answer scores {compact(first)}, so nothing can be learnt")
    return found


def _taken_as(run: RunSpec) -> Taken:
    return run.algorithm.data if run.algorithm.sampled else "prompts"


def _rows(run: RunSpec, refused: list[RefusedRow]) -> Iterator[Row]:
    """The rows with a prompt; those that cannot be used are added to `refused`."""
    kind = _taken_as(run)
    for row in run.data.read("train", kind):
        if isinstance(row, RefusedRow):
            refused.append(row)
        elif needs_rollout(row, "train", kind):
            yield row


def _kind(trial: RewardTrial, name: str) -> AnswerKind:
    scores = [score for score, of in zip(trial.best(name), trial.scores[name], strict=True) if of]
    real = [score for score in scores if not math.isnan(score)]
    unscored = len(scores) - len(real)
    if not real:
        return AnswerKind(name, len(scores), unscored, *[math.nan] * 5)
    zeros = sum(score == 0 for score in real) / len(real)
    return AnswerKind(name, len(scores), unscored, fmean(real), min(real), median(real), max(real), zeros)
