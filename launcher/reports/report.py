"""The report of one run: the page that `rlrun report` writes into its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from launcher.core.files import write_atomic
from launcher.core.metrics import HeldOut, better_than, interval_of, label, shown_in
from launcher.core.metrics import metric as metric_entry
from launcher.core.problems import Problem, Problems
from launcher.core.state import RunState
from launcher.monitor.console import clock, date
from launcher.reports.answers import drawn, error_groups, mean_score
from launcher.reports.goal import GoalResult, judge_goal
from launcher.reports.measures import ReportRow, checklist, efficiency, reward_parts, stability
from launcher.reports.plots import line_of, line_of_validations, plot
from launcher.reports.render import render
from launcher.reports.text import one_line
from launcher.views.record import RunRecord
from launcher.views.runs import status_word
from launcher.views.trace import Trace

MOST_SOURCES = 60


PlotFigure = tuple[str, str, Markup]
"""Title of a curve, a note on it, and the curve."""


@dataclass(frozen=True)
class Report:
    """What a run came to; the page has its curves, tables and answers, too."""

    record: RunRecord
    intro: str
    goal: GoalResult
    problems: list[str]
    efficiency: list[ReportRow]
    checklist: list[ReportRow]

    @property
    def verdict_status(self) -> str:
        return {"learned": "pass", "harmed": "fail"}.get(self.record.verdict.kind, "")

    @property
    def node(self) -> dict[str, Any]:
        """The result as JSON-like values, for programs."""
        record, goal = self.record, self.goal
        return {
            "run": record.name, "status": record.state.status, "verdict": record.verdict, "goal": goal.goal,
            "outcome": goal.outcome, "measured": goal.measured, "checklist": self.checklist,
        }  # fmt: skip

    @property
    def counts(self) -> str:
        """`7 pass, 2 fail, 1 not measured`"""
        counts = {
            status: sum(row.status == status for row in self.checklist) for status in ("pass", "fail", "not measured")
        }
        return ", ".join(f"{count} {status}" for status, count in counts.items())


def make_report(record: RunRecord, goal: float | None = None) -> Report:
    """Judge a run; `goal` is the value that its held-out score should reach."""
    judged, cost = judge_goal(record, goal), efficiency(record)
    return Report(record, _intro(record.state), judged, _problems(record), cost, checklist(record, judged, cost))


def write_report(report: Report, out: Path) -> None:
    """Write the page. Raises `OSError`."""
    record = report.record
    page = render(
        "report.html.j2", r=report, facts=_fact_rows(record), plots=list(_plot_figures(record, report.goal)),
        stability=list(stability(record)), reward_parts=reward_parts(record), sources=_source_scores(record),
        errors=error_groups(record.samples), mean_score=mean_score, samples=drawn(record.samples),
    )  # fmt: skip
    write_atomic(out, page)


def check_output(out: Path) -> None:
    """Raises `Problems` where a file of that name cannot be written, before anything is read."""
    if out.suffix != ".html":
        raise Problems(Problem("--out", f"{out.name} is no page", "use a name that ends with .html"))
    if not out.parent.is_dir():
        raise Problems(Problem("--out", f"{out.parent} is not a folder", "use a folder that exists", "not-found"))


def _intro(state: RunState) -> str:
    start = f", began {date(state.started_at)}" if state.started_at else ""
    doubt = f": {one_line(state.why, 400)}" if state.why and state.status != "failed" else ""
    progress = f"{state.status} at step {state.step} of {state.steps or '?'}"
    return f"{state.algorithm or 'unknown algorithm'}, {progress}{start}{doubt}"


def _problems(record: RunRecord) -> list[str]:
    state = record.state
    lines = list(record.unread)
    if state.status == "failed":
        lines.append(f"the run failed: {state.why or 'no cause was recorded'}")
    if state.status in ("running", "waiting"):
        lines.append(f"the run is {state.status}: this is what it has come to so far")
    if state.stalled:
        lines.append(f"stalled: {state.stalled}")
    return [one_line(text, 600) for text in lines]


def _fact_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    state, final = record.state, record.final
    yield "status", status_word(state)
    yield "steps", f"{state.step} of {state.steps or '?'}"
    yield "duration", clock(state.elapsed_s)
    if state.restarts:
        yield "restarts", str(state.restarts)
    if final:
        yield f"held out, {label(final.name)}"[:60], final.shown
    if state.best and final and better_than(state.best, final):
        yield f"best, at step {state.best.step}", state.best.shown
    yield "findings", str(record.alert_count)


def _plot_figures(record: RunRecord, judged: GoalResult) -> Iterator[PlotFigure]:
    if len(record.validations) > 1:
        name = record.validations[-1].name
        shown = [validation for validation in record.validations if validation.name == name]
        target = judged.goal.value if judged.goal else None
        note = "; bars: 95 % intervals" + ("" if target is None else "; dashed: the goal")
        svg = plot(line_of_validations(shown), f"held-out {name} over steps", target)
        yield "held-out score", one_line(name, 120) + note, svg
    for names in shown_in("curve"):
        if (named_trace := record.trace(*names)) and named_trace[1].count > 1:
            yield _curve_figure(*named_trace)


def _curve_figure(name: str, trace: Trace) -> PlotFigure:
    entry = metric_entry(name)
    unit = f", {entry.unit}" if entry and entry.unit else ""
    meaning = f": {entry.meaning}{unit}" if entry else ""
    svg = plot(line_of(trace), f"{name} over steps")
    note = f"; {trace.not_finite} values are not finite" if trace.not_finite else ""
    return label(name), f"{name}{meaning}{note}", svg


def _source_scores(record: RunRecord) -> list[HeldOut]:
    names = [name for name in record.last_validation if name.startswith("val-core/")][:MOST_SOURCES]
    step = record.final.step if record.final else 0
    metrics = record.last_validation
    return [HeldOut(step, name, metrics[name], *(interval_of(name, metrics) or ())) for name in names]
