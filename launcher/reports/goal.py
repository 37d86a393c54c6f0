"""Whether a run reached its goal: the final held-out score with its 95 % interval against a value; without a goal its
change since the validation before training."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from launcher.core import checkpoints
from launcher.core.events import Sample
from launcher.core.metrics import HeldOut, better, label
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.reports.items import common_items
from launcher.reports.paired import ALPHA, ScoreDifference, compare_paired, compare_unpaired
from launcher.views.record import RunRecord

_GOAL = re.compile(r"(?:(?P<name>\S+?)\s*(?P<sign><=|>=))?\s*(?P<value>[-+.0-9eE]+)")
LOW_SHARE = 0.5  # of answers with a positive score, below which the model hardly finds any
ENOUGH_ANSWERS = 10  # the guide reads 10 to 20
UNKNOWN = "there is no validation, so nothing is known of held-out data"
Outcome = Literal["reached", "not reached", "not measured"]


@dataclass(frozen=True)
class Goal:
    """What a metric is to reach; no metric: the main held-out score."""

    value: float
    metric: str = ""
    at_most: bool = False

    @property
    def text(self) -> str:
        return f"{self.metric or 'held-out score'} {'<=' if self.at_most else '>='} {self.value:g}"

    def met_by(self, value: float) -> bool:
        return value <= self.value if self.at_most else value >= self.value


@dataclass(frozen=True)
class GoalResult:
    """What is known of the goal, as sentences."""

    outcome: Outcome
    goal: Goal | None
    measured: HeldOut | None
    lines: tuple[str, ...]
    """The finding first; then what limits it, and where to look."""
    change: ScoreDifference | None = None
    """From the first validation to the last."""

    @property
    def title(self) -> str:
        if self.goal:
            return f"Goal {self.goal.text}: {self.outcome}"
        return "No goal was given"


def parse_goal(text: str) -> Goal:
    """`0.55`, `METRIC>=0.55` or `METRIC<=0.3`. Raises `Problems`."""
    found = _GOAL.fullmatch(text.strip())
    try:
        value = float(found["value"]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise Problems(Problem("--goal", f"cannot read {short_repr(text)}", "use 0.55, METRIC>=0.55 or METRIC<=0.55"))
    return Goal(value, found["name"] or "", found["sign"] == "<=")


def judge_goal(record: RunRecord, goal: Goal | None) -> GoalResult:
    """Raises `Problems` where the run has no metric of the goal's name, but others."""
    change = change_since_start(record)
    measured = record.final if goal is None else _measured(record, goal)
    if measured is None:
        return GoalResult("not measured", goal, None, (UNKNOWN,), change)
    finding = f"{label(measured.name)} is {measured.shown} at step {measured.step}"
    if goal is None:
        since = _change_text(record, change) if change else "there is one validation, so no change is known"
        return GoalResult("not measured", None, measured, (finding, since), change)
    if not goal.metric and better(measured.name) == "down":
        goal = Goal(goal.value, goal.metric, at_most=True)
    reached = goal.met_by(measured.value)
    lines = [
        f"{finding}; the goal is {goal.text}",
        _certainty(goal, measured, reached),
        *([] if reached else _questions(record)),
        *([] if change is None else [_change_text(record, change)]),
    ]
    return GoalResult("reached" if reached else "not reached", goal, measured, tuple(lines), change)


def _measured(record: RunRecord, goal: Goal) -> HeldOut | None:
    if not goal.metric or (record.final and goal.metric == record.final.name):
        return record.final
    if goal.metric in record.traces:
        trace = record.traces[goal.metric]
        if not trace.count:  # never finite
            return None
        return HeldOut(trace.buckets[-1].last, goal.metric, trace.last, *interval_of(record, goal.metric))
    if not record.traces:
        return None
    fix = suggest(goal.metric, sorted(record.traces))
    raise Problems(Problem(f"--goal {goal.metric}", "the run has no metric of that name", fix, "not-found"))


def interval_of(record: RunRecord, name: str) -> tuple[float | None, float | None]:
    """The 95 % interval of one source's mean score at the last validation, where that was measured."""
    found = re.fullmatch(r"val-core/(.+)/reward/mean@([0-9]+)", name)
    if not found:
        return None, None
    for kind in ("wilson95", "normal95"):
        ends = [f"val-aux/{found[1]}/reward/{kind}_{end}@{found[2]}" for end in ("low", "high")]
        if all(end in record.last_validation for end in ends):
            return record.last_validation[ends[0]], record.last_validation[ends[1]]
    return None, None


def _certainty(goal: Goal, measured: HeldOut, reached: bool) -> str:
    if measured.low is None or measured.high is None:
        return "no interval is known, so how certain that is cannot be said"
    if goal.met_by(measured.low) == goal.met_by(measured.high):
        return f"the whole 95 % interval {'meets' if reached else 'misses'} the goal"
    other = "miss" if reached else "meet"
    return f"the 95 % interval also holds values that {other} the goal: more held-out prompts would decide it"


def _questions(record: RunRecord) -> list[str]:
    """Of a run that missed its goal: did it fall or stop rising, and how many answers have a positive score?"""
    lines, scores = [], [each for each in record.validations if better(each.name) != "down"]
    best = max(scores, key=lambda each: each.value, default=None)
    known = _half_width(best) + _half_width(scores[-1]) if best else 0.0
    fell = best is not None and 0 < known < best.value - scores[-1].value
    if best and fell:
        saved = checkpoints.newest_first(record.folder.checkpoints)
        kept = f", or the checkpoint of step {best.step}" if best.step in map(checkpoints.step_of, saved) else ""
        what = f"the held-out score fell from {best.value:.4g} at step {best.step} to {scores[-1].value:.4g}"
        lines.append(f"{what}: a smaller optim.lr{kept}")
    elif len(scores) >= 4:
        half = scores[len(scores) // 2 :]
        flat = abs(half[-1].value - half[0].value) <= _half_width(scores[-1])
        what = f"the held-out score went from {half[0].value:.4g} to {half[-1].value:.4g} in the second half"
        lines.append(f"{what}: {'flat, so look at the reward, optim.lr and sampler.n' if flat else 'not flat'}")
    if found := _positive(record):
        share, what = found
        low = "low" if fell else "low, so the model rarely finds a right answer: train longer, or on easier data"
        lines.append(f"{what}: {low if share < LOW_SHARE else 'not low'}")
    return lines


def _half_width(measured: HeldOut) -> float:
    """Of its interval; 0 where none is known."""
    return (measured.high - measured.low) / 2 if measured.high is not None and measured.low is not None else 0.0


def _positive(record: RunRecord) -> tuple[float, str] | None:
    """The share of answers that score above 0, and as a sentence: held-out ones where enough are logged, else those of
    the last steps, all of which were counted."""
    share, trained = positive_share(record.samples), record.trace("critic/rewards/positive_share")
    if share is not None and (enough_logged(record) or not trained):
        return share, f"{share:.0%} of {len(record.samples)} logged held-out answers have a positive score"
    if trained and trained[1].count:
        share = trained[1].late()
        return share, f"{share:.0%} of the training answers of the last steps have a positive reward"
    return None


def enough_logged(record: RunRecord) -> bool:
    """Whether the log has all held-out answers of the last validation, or enough of them to judge the others by."""
    prompts = record.loaded.val_rows if record.loaded else 0
    return len(record.samples) >= min(prompts or ENOUGH_ANSWERS, ENOUGH_ANSWERS)


def positive_share(samples: list[Sample]) -> float | None:
    """The share of answers whose score is above 0; None of none."""
    scores = [sample.value for sample in samples if math.isfinite(sample.value)]
    return sum(score > 0 for score in scores) / len(scores) if scores else None


def change_since_start(record: RunRecord) -> ScoreDifference | None:
    """From the first validation to the last; paired where scores of all prompts are logged for both."""
    if len(record.validations) < 2:
        return None
    first, last = record.validations[0], record.validations[-1]
    if first.name != last.name:
        return None
    pairs = common_items(record, first.step, record, last.step).scores()
    prompts = record.loaded.val_rows if record.loaded else 0
    if pairs and len(pairs) >= max(prompts, 1) and better(first.name) != "down":
        return compare_paired([one for one, _ in pairs], [other for _, other in pairs])
    return compare_unpaired(first, last)


def _change_text(record: RunRecord, change: ScoreDifference) -> str:
    first = record.validations[0]
    where = f"since step {first.step} ({first.shown})"
    return f"{change.value:+.4g} {where}: {significance(change, change.p)}"


def significance(found: ScoreDifference, p: float | None) -> str:
    """`significant (95 % interval 0.1 to 0.3, p = 0.002, McNemar exact on 256 items)`"""
    if p is None or found.low is None or found.high is None:
        return "not tested, as no interval is known"
    how = f"{found.method} on {found.items} items" if found.paired else "not paired: from two intervals"
    result = "significant" if p < ALPHA else "not significant"
    p_text = f"= {p:.2g}" if p >= 1e-4 else "< 0.0001"
    return f"{result} (95 % interval {found.low:+.3g} to {found.high:+.3g}, p {p_text}, {how})"
