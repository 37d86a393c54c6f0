"""Tables of a report: stability with what the health rules found, efficiency, parts of the reward, and the checklist.

Whether a value is healthy is judged by the rules of the run's health profile alone, while it trains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from launcher.core.metric_aliases import canonical
from launcher.core.metrics import label
from launcher.core.state import LEVELS
from launcher.reports.goal import GoalResult, Status
from launcher.views.record import RunRecord
from launcher.views.trace import Trace

GOOD_SCORE = 0.8  # of an answer; a reward of several parts gives less than 1 to right answers, too
ENOUGH_ANSWERS = 10  # the guide reads 10 to 20
SWING = 3.0  # longest step in medians: steps of answers of odd lengths stay below
FULL = 23 / 24  # of a card's memory: the allocator needs the rest, so what comes near it may end by out-of-memory
NEAR = 20 / 24
MOST_PARTS = 50
BUSY, IDLE = 70.0, 30.0  # percent of the time in which a GPU computes
STABLE: tuple[tuple[str, ...], ...] = (
    ("actor/pg_loss", "train/loss", "actor/dpo_loss"),
    ("actor/entropy",),
    ("actor/kl_loss", "actor/reward_kl_penalty"),
    ("actor/grad_norm", "train/grad_norm"),
)
"""Metrics of the stability table: of each row the first that the run has."""


@dataclass(frozen=True)
class ReportRow:
    """One line of a table: its title, whether it passes, its figure, and a note on the figure."""

    name: str
    status: Status
    figure: str
    note: str = ""


def stability(record: RunRecord) -> Iterator[tuple[str, str, Trace, str, str]]:
    """Label, name and values of each metric, the most serious level of the health findings on it, and their rules."""
    for name, trace in filter(None, (record.trace(*names) for names in STABLE)):
        if trace.count:
            alerts = [alert for alert in record.alerts if alert.metric and canonical(alert.metric) == name]
            level = max((alert.level for alert in alerts), key=LEVELS.index, default="")
            yield label(name), name, trace, level, ", ".join(dict.fromkeys(alert.rule for alert in alerts))


# ---- efficiency


def efficiency(record: RunRecord) -> list[ReportRow]:
    """Steps, speed and memory."""
    rows = _steps(record), _pace(record), _tokens(record), _gpu_use(record), _gpu_memory(record)
    return [row for row in rows if row]


def _steps(record: RunRecord) -> ReportRow:
    state = record.state
    done = state.step >= state.steps > 0
    note = "" if done else f"status: {state.status}"
    status: Status = "pass" if done else "fail" if state.steps else "not measured"
    return ReportRow("steps", status, f"{state.step} of {state.steps or '?'}", note)


def _pace(record: RunRecord) -> ReportRow:
    times = list(record.step_times)[1:]  # the first compiles and warms up
    if len(times) < 2 or not (median_s := median(times)):
        return ReportRow("seconds per step", "not measured", "")
    longest, mean = max(times), sum(record.step_times) / len(record.step_times)
    note = f"median {median_s:.3g}, longest after the first {longest:.3g}: {longest / median_s:.1f}x the median"
    status: Status = "pass" if longest / median_s <= SWING else "fail"
    return ReportRow("seconds per step", status, f"mean {mean:.3g} s", f"{note}; bound {SWING:g}x")


def _tokens(record: RunRecord) -> ReportRow | None:
    seconds = sum(record.step_times)
    if not record.tokens or not seconds:
        return None
    note = f"within steps; {record.tokens:,.0f} tokens in all"
    return ReportRow("tokens per second", "no bound", f"{record.tokens / seconds:,.0f}", note)


def _gpu_use(record: RunRecord) -> ReportRow:
    busy = record.gpu_busy.mean
    if math.isnan(busy):
        return ReportRow("GPU use", "not measured", "", "no GPU, or no Usage event: cluster.usage_s")
    note = "well used" if busy > BUSY else "moderate"
    if busy < IDLE:
        note = "use a larger trainer.micro_batch_size_per_gpu or engine.mixed_precision=true"
    return ReportRow("GPU use", "fail" if busy < IDLE else "pass", f"mean {busy:.0f} %", note)


def _gpu_memory(record: RunRecord) -> ReportRow:
    tensors = record.traces.get("perf/max_memory_allocated_gb")
    at_most = f"tensors at most {tensors.high:.3g} GiB" if tensors and tensors.count else ""
    if record.gpu_memory is None:
        return ReportRow("GPU memory", "not measured", at_most, "no Usage event with GPU memory")
    share, in_use, total = record.gpu_memory
    peak = f"peak {in_use / 2**30:.3g} of {total / 2**30:.3g} GiB ({share:.0%})"
    note = "near its limit" if share > NEAR else ""
    if share >= FULL:
        note = "use a smaller trainer.micro_batch_size_per_gpu"
    figure = "; ".join(filter(None, (peak, at_most)))
    return ReportRow("GPU memory", "fail" if share >= FULL else "pass", figure, note)


# ---- the reward's parts


def reward_parts(record: RunRecord) -> list[tuple[str, str, Trace]]:
    """Label, metric and values of each part of the score, and of the sums over rules and over reward models; at most
    MOST_PARTS of them."""
    part = re.compile(r"critic/score/[^/]+/mean|train/core/reward/.+")
    parts = [(label(name), name, trace) for name, trace in record.traces.items() if part.fullmatch(name)]
    return [each for each in parts if each[2].count][:MOST_PARTS]


# ---- the checklist


def checklist(record: RunRecord, goal: GoalResult, cost: list[ReportRow]) -> list[ReportRow]:
    """What to look at first: did it learn, does it generalize to held-out data, was it healthy and efficient?"""
    return [
        _learned(record), _gap(record), _target(goal), _answers_good(record), _healthy(record), _efficient(cost),
    ]  # fmt: skip


def score_trace(record: RunRecord) -> tuple[str, Trace] | None:
    return record.trace("critic/score/mean", "critic/rewards/mean", "rewards/accuracies")


def comparable_score(record: RunRecord) -> tuple[str, Trace] | None:
    """(name, trace) of the training score that measures the same as the last validation; None where there is none, as
    an accuracy on pairs cannot be compared with a score of answers."""
    held_out_name = record.final.name if record.final else ""
    if held_out_name.startswith("val-core/"):
        return record.trace("critic/score/mean", "critic/rewards/mean")
    return record.trace(held_out_name.removeprefix("val/")) if held_out_name.startswith("val/rewards/") else None


def _learned(record: RunRecord) -> ReportRow:
    verdict = record.verdict
    status: Status = "pass" if verdict.kind == "learned" else "fail"
    return ReportRow("it learned", "not measured" if verdict.kind == "cannot tell" else status, verdict.line)


def _gap(record: RunRecord) -> ReportRow:
    name, trained, final = "training score above the held-out one", comparable_score(record), record.final
    if not trained or not trained[1].count or final is None:
        return ReportRow(name, "not measured", "")
    train = trained[1].late()
    gap, relative = train - final.value, (train - final.value) / abs(train) if train else 0.0
    figure = f"training {train:.4g} in the last steps, held out {final.value:.4g}: gap {gap:+.4g} ({relative:+.0%})"
    note = "in points of the score"
    if final.name.startswith("val-core/"):
        note += "; training answers are sampled, held-out ones at sampler.val_temperature"
    return ReportRow(name, "no bound", figure, note)


def _target(goal: GoalResult) -> ReportRow:
    figure = f"{goal.measured.shown}; goal {goal.goal.text}" if goal.goal and goal.measured else ""
    return ReportRow("held-out score meets the goal", goal.status, figure, "" if goal.goal else "give one with --goal")


def _answers_good(record: RunRecord) -> ReportRow:
    name = f"held-out answers that score >= {GOOD_SCORE:g}"
    scores = [sample.value for sample in record.samples if math.isfinite(sample.value)]
    if not scores:
        return ReportRow(name, "not measured", "", "trainer.log_val_generations logs answers")
    share = sum(score >= GOOD_SCORE for score in scores) / len(scores)
    positive = sum(score > 0 for score in scores) / len(scores)
    figure = f"{share:.0%} of {len(scores)} logged answers; {positive:.0%} have a positive score"
    prompts = record.loaded.val_rows if record.loaded else 0
    if len(record.samples) < min(prompts or ENOUGH_ANSWERS, ENOUGH_ANSWERS):
        note = f"too few to judge by; trainer.log_val_generations={ENOUGH_ANSWERS} or more"
        return ReportRow(name, "not measured", figure, note)
    return ReportRow(name, "no bound", figure, "whether the reasoning is right: see the samples")


def _healthy(record: RunRecord) -> ReportRow:
    serious = [alert for alert in record.alerts if alert.level != "info"]
    rules = ", ".join(dict.fromkeys(alert.rule or alert.level for alert in serious))
    count = f"{len(serious)} of {record.alert_count} findings are warnings or critical"
    figure = count if record.alerts else "no finding"
    lost = any(alert.level == "critical" for alert in serious)
    status: Status = "fail" if lost else "no bound" if serious else "pass" if record.traces else "not measured"
    return ReportRow("health rules find nothing critical", status, figure, rules)


def _efficient(rows: list[ReportRow]) -> ReportRow:
    judged = [row for row in rows if row.status in ("pass", "fail")]
    bad = [row.name for row in judged if row.status == "fail"]
    figure = f"{len(judged) - len(bad)} of {len(judged)} pass"
    return ReportRow("efficiency", "fail" if bad else "pass", figure, f"look at: {', '.join(bad)}" if bad else "")
