"""What a reward makes of answers that are known to be right, wrong or nonsense, before a run learns from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from launcher.config.resolve import resolve
from launcher.core.problems import Problem, Problems
from launcher.preflight.checks.reward_trial import KINDS, RewardTrial, best_of
from launcher.spec.algorithm import Kind as Taken
from launcher.spec.data import OnDataProgress, Row, make_answer, needs_rollout
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
    rows = list(islice(_rows(run), count))
    if not rows:
        raise Problems(Problem("data", "no row has a prompt", "use rows with prompts", "bad-row"))
    reward, name = run.engine.reward(run), type(run.reward).__name__
    score_safely(reward, [make_answer(rows[0])])  # what is loaded at the first answer is no answer's time
    trial = RewardTrial(reward, [make_answer(row) for row in rows])
    kinds = tuple(_kind(kind, [score for score, of in zip(best_of(scores), scores, strict=True) if of])
                  for kind in KINDS if (scores := trial.score(kind)) is not None)  # fmt: skip
    seconds = sorted(one.seconds for one in trial.scored)
    faults = [f"{rows[one.row].where}: {one.kind}: {one.fault}" for one in trial.scored if one.fault]
    same = trial.change() is None
    uses_truth = reward.uses_ground_truth and (trial.known or reward.cheap)
    return BenchReport(
        name, len(rows), kinds, trial.known, same, median(seconds), seconds[math.ceil(len(seconds) * 0.95) - 1],
        tuple(faults[:SHOWN]), tuple(_wrong(kinds, trial.known, same, len(faults), uses_truth)),
    )  # fmt: skip


def _taken_as(run: RunSpec) -> Taken:
    return run.algorithm.data if run.algorithm.sampled else "prompts"


def _rows(run: RunSpec) -> Iterator[Row]:
    kind = _taken_as(run)
    for row in run.data.read("train", kind):
        if isinstance(row, Row) and needs_rollout(row, "train", kind):
            yield row


def _kind(name: str, scores: Sequence[float]) -> AnswerKind:
    real = [score for score in scores if not math.isnan(score)]
    if not real:
        return AnswerKind(name, len(scores), len(scores), *[math.nan] * 5)
    zeros = sum(score == 0 for score in real) / len(real)
    return AnswerKind(
        name, len(scores), len(scores) - len(real), fmean(real), min(real), median(real), max(real), zeros
    )


def _wrong(kinds: Sequence[AnswerKind], known: bool, same: bool, faults: int, looks_at_truth: bool) -> Iterator[str]:
    """Why a run should not learn from it."""
    mean = {kind.name: kind.mean for kind in kinds if not math.isnan(kind.mean)}
    truth = mean.get("gold")
    if faults:
        yield f"{faults} answers have no score"
    if not same:
        yield "the same answers scored otherwise when asked again"
    if len(set(mean.values())) == 1 and len(mean) > 1 and not known:
        yield f"every kind of answer scores {next(iter(mean.values())):.4g} on the mean, so nothing can be learnt"
    elif truth is not None and looks_at_truth:
        for name in ("empty", "wrong", "format", "injection") if known else ("empty",):
            if mean.get(name, -math.inf) >= truth:
                yield f"{name} ({KINDS[name]}) scores {mean[name]:.4g} on the mean, and the right answer {truth:.4g}"
