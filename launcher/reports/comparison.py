"""Runs beside one another: settings that differ, results, curves, and tests on the same held-out items.

Each run is compared with the first, at the last step at which both have results, or at their ends where there is no
such step. The test is paired where the log has the scores of at least half of the held-out prompts; otherwise it is
made from the two intervals. Which of them is made depends on what was logged, never on what it finds. P-values of
several comparisons are adjusted together (Holm 1979).
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from launcher.config import diff
from launcher.config.descriptions import written
from launcher.core.files import write_atomic
from launcher.core.metrics import HeldOut, better, label, shown_in
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.monitor.console import clock
from launcher.reports.goal import significance
from launcher.reports.items import common_items
from launcher.reports.measures import score_trace
from launcher.reports.paired import ALPHA, ScoreDifference, compare_paired, compare_unpaired, holm
from launcher.reports.plots import Line, line_of, line_of_validations, plot
from launcher.reports.render import render
from launcher.reports.text import setting_text
from launcher.runs import store
from launcher.views.read import read_record
from launcher.views.record import RunRecord
from launcher.views.runs import status_word

MOST_RUNS, MOST_SOURCES, MOST_SETTINGS = 26, 20, 300
ENOUGH = 0.5  # the share of held-out prompts with a score below which the test is not paired
OWN = ("trainer.project_name", "trainer.experiment_name")  # these differ in any two runs
ABSENT = "-"


Side = tuple[str, RunRecord]
Sides = Mapping[str, RunRecord]
"""The runs by their letters, in the order in which they were given."""


@dataclass(frozen=True)
class SettingsRow:
    """A setting that differs, with its value in each run."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class ScoreTest:
    """Whether run `b` differs from run `a`."""

    a: str
    b: str
    source: str
    """A data source; empty for all together."""
    steps: tuple[int, int]
    metric: str
    found: ScoreDifference
    p_adjusted: float | None = None
    comparisons: int = 1

    @property
    def significant(self) -> bool:
        return self.p_adjusted is not None and self.p_adjusted < ALPHA

    @property
    def outcome(self) -> str:
        """`better` or `worse`; empty where the difference is not significant."""
        if not self.significant:
            return ""
        return "worse" if (self.found.value < 0) != (better(self.metric) == "down") else "better"

    @property
    def text(self) -> str:
        """`B - A at step 120: +0.02 (0.65 and 0.63): not significant (...)`"""
        a, b = self.steps
        at = f"at step {b}" if a == b else f"at steps {b} and {a}"
        of = f" on {self.source}" if self.source else ""
        change = f"{self.found.value:+.4g} ({compact(self.found.b)} and {compact(self.found.a)})"
        outcome = significance(self.found, self.p_adjusted)
        if self.outcome:
            outcome = f"{self.b} is {self.outcome}, {outcome}"
        if self.p_adjusted is not None and self.comparisons > 1:
            outcome = f"{outcome}; p is adjusted for {self.comparisons} comparisons"
        return f"{self.b} - {self.a}{of} {at}: {change}: {outcome}"

    @property
    def node(self) -> dict[str, Any]:
        found = {"difference": self.found.value, "paired": self.found.paired, "significant": self.significant}
        return {**asdict(self), **found}


@dataclass(frozen=True)
class Comparison:
    """What the page and the terminal show."""

    sides: Sides
    settings: list[SettingsRow]
    results: list[tuple[str, ...]]
    """A name, and a text for each run."""
    tests: list[ScoreTest]
    notes: list[str]
    """What could not be read."""
    remarks: list[str]
    plots: list[tuple[str, Markup]]

    @property
    def node(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "runs": {letter: record.name for letter, record in self.sides.items()},
            "settings": {row.name: dict(zip(self.sides, row.values, strict=True)) for row in self.settings},
            "results": {name: dict(zip(self.sides, cells, strict=True)) for name, *cells in self.results},
            "tests": [test.node for test in self.tests],
            "notes": self.notes,
            "remarks": self.remarks,
        }


def compare_runs(names: Sequence[str], root: Path) -> Comparison:
    """Read and compare runs. Raises `Problems` where a name means no run, or two mean the same one."""
    folders = [store.find(name, root) for name in names]
    if len({folder.path.resolve() for folder in folders}) < len(folders):
        raise Problems(Problem("compare", "a run was given twice", "use different runs"))
    if len(folders) > MOST_RUNS:
        raise Problems(Problem("compare", f"{len(folders)} runs were given", f"use at most {MOST_RUNS}"))
    sides = dict(zip(string.ascii_uppercase, map(read_record, folders), strict=False))
    notes = [f"{record.name}: {line}" for record in sides.values() for line in record.unread]
    settings, problems = differing_settings(sides)
    tests, remarks = judge_scores(sides)
    plots = list(_plots(sides))
    return Comparison(sides, settings, list(_results(sides.values())), tests, [*notes, *problems], remarks, plots)


def differing_settings(sides: Sides) -> tuple[list[SettingsRow], list[str]]:
    """Settings in which any run differs from the first, and what could not be read."""
    read, problems = dict[str, diff.Side](), list[str]()
    for letter, record in sides.items():
        try:
            read[letter] = diff.side_of_run(record.name, record.folder)
        except Problems as error:
            problems += [f"{record.name}: its settings are left out: {line}" for line in error.lines]
    order = dict[tuple[str, bool], None]()
    for other in list(read.values())[1:]:
        found = diff.rows(next(iter(read.values())), other)
        order |= {(row.name, row.whole): None for row in found if row.name not in OWN}
    rows = []
    for name, whole in list(order)[:MOST_SETTINGS]:
        cells = [_setting(read.get(letter), name, whole) for letter in sides]
        rows.append(SettingsRow(name, tuple(cells)))
    return rows, problems


def _setting(side: diff.Side | None, name: str, whole: bool) -> str:
    values = {} if side is None else side.classes if whole else side.values
    return setting_text(name, written(values[name])) if name in values else ABSENT


# ---- tests


def judge_scores(sides: Sides) -> tuple[list[ScoreTest], list[str]]:
    """Each run against the first, with adjusted p-values; and remarks."""
    tests, remarks = list[ScoreTest](), list[str]()
    first, *others = sides.items()
    for other in others:
        more, notes = _test_pair(first, other)
        tests, remarks = [*tests, *more], [*remarks, *notes]
    known = [test for test in tests if test.found.p is not None]
    adjusted = dict(zip(map(id, known), holm([test.found.p or 0.0 for test in known]), strict=True))
    return [replace(test, p_adjusted=adjusted.get(id(test)), comparisons=len(known)) for test in tests], remarks


def _test_pair(one: Side, other: Side) -> tuple[list[ScoreTest], list[str]]:
    validations = common_validation(one[1], other[1])
    found = _test_at(one, other, *validations) if validations else None
    tests, notes = found or ([], ["the difference is not tested, as the runs have no held-out metric in common"])
    return tests, [f"{other[0]} - {one[0]}: {note}" for note in notes]


def _test_at(one: Side, other: Side, a: HeldOut, b: HeldOut) -> tuple[list[ScoreTest], list[str]]:
    """The tests of two validations: one of all items and, where they are paired, one of each source; and remarks."""
    remarks, test = list[str](), partial(ScoreTest, one[0], other[0], steps=(a.step, b.step), metric=a.name)
    prompts = max((record.loaded.val_rows if record.loaded else 0) for _, record in (one, other))
    is_loss = better(a.name) == "down"
    items = common_items(one[1], a.step, other[1], b.step)
    pairs = [] if is_loss else items.scores()
    if not pairs or len(pairs) < ENOUGH * prompts:
        remarks.append(
            f"the test is not paired, as the {label(a.name)} of single prompts is not logged"
            if is_loss
            else _why_unpaired(len(pairs), min(items.logged), prompts)
        )
        return [test("", found=compare_unpaired(a, b))], remarks
    if len(pairs) < max(items.logged):
        remarks.append(f"{max(items.logged) - len(pairs)} prompts lack a score in one of the runs and are left out")
    if not (items.means or a.name.endswith("@1")):
        remarks.append(f"paired scores are those of the first answer to each prompt; the runs report {a.name}")
    sources = items.sources[:MOST_SOURCES] if len(items.sources) > 1 else []
    return [test(source, found=_paired(items.scores(source))) for source in ("", *sources)], remarks


def _why_unpaired(pairs: int, logged: int, prompts: int) -> str:
    """`logged` answers are in the log that has fewer."""
    if logged >= max(ENOUGH * prompts, 1):
        why = f"only {pairs} of {prompts} held-out prompts are the same in both runs and have a score"
        return f"the test is not paired, as {why}"
    why = f"the logs of both runs have answers to only {pairs} of {prompts} held-out prompts"
    fix = f"trainer.log_val_generations={max(prompts, 1)} in both runs makes a paired test"
    return f"the test is not paired, as {why}; {fix}, which finds smaller differences"


def _paired(pairs: Sequence[tuple[float, float]]) -> ScoreDifference:
    return compare_paired([one for one, _ in pairs], [other for _, other in pairs])


def common_validation(a: RunRecord, b: RunRecord) -> tuple[HeldOut, HeldOut] | None:
    """The last validations of both at the same step, or those at their ends where there is no such step; None where
    they measure different things."""
    by_step = {each.step: each for each in a.validations}
    for each in reversed(b.validations):
        if each.step > 0 and each.step in by_step and by_step[each.step].name == each.name:
            return by_step[each.step], each
    return (a.final, b.final) if a.final and b.final and a.final.name == b.final.name else None


# ---- tables and plots


def _results(records: Collection[RunRecord]) -> Iterator[tuple[str, ...]]:
    columns = {
        "status": status_word,
        "steps": lambda state: f"{state.step} of {state.steps}",
        "held out, last": lambda state: _held_out(state.last),
        "held out, best": lambda state: _held_out(state.best),
        "held out, first": lambda state: _held_out(state.first),
    }
    for name, text in columns.items():
        yield name, *(text(record.state) for record in records)
    yield "training score, last steps", *_training_scores(records)
    yield "duration", *(clock(record.active_s) for record in records)
    yield "seconds per step", *(f"{record.step_seconds:.3g}" if record.step_seconds else ABSENT for record in records)
    yield "tokens", *(f"{record.tokens:,.0f}" if record.tokens else ABSENT for record in records)
    yield "restarts", *(str(record.state.restarts) for record in records)
    yield "findings", *(str(record.alert_count) for record in records)


def _training_scores(records: Iterable[RunRecord]) -> list[str]:
    """A text of each run's score, with its name where the runs measure different things, which cannot be compared."""
    scores = [score_trace(record) for record in records]
    mixed = len({found[0] for found in scores if found}) > 1
    late = [(f"{label(found[0])} " if mixed else "", found[1].late()) if found else None for found in scores]
    return [f"{each[0]}{compact(each[1])}" if each else ABSENT for each in late]


def _held_out(measured: HeldOut | None) -> str:
    return f"{label(measured.name)} {measured.shown} at {measured.step}" if measured else ABSENT


def _plots(sides: Sides) -> Iterator[tuple[str, Markup]]:
    lines = [line_of_validations(letter, record.validations) for letter, record in sides.items()]
    yield from _plot("held-out score; bars: 95 % intervals", lines)
    for names in shown_in("curve"):
        found = [(letter, record.trace(*names)) for letter, record in sides.items()]
        title = next((trace[0] for _, trace in found if trace), next(iter(names)))
        yield from _plot(f"{label(title)}, {title}", [line_of(letter, trace[1]) for letter, trace in found if trace])


def _plot(title: str, lines: list[Line]) -> Iterator[tuple[str, Markup]]:
    if svg := plot(lines, f"{title} of {len(lines)} runs over steps"):
        yield title, svg


def write_comparison(found: Comparison, out: Path) -> Path:
    """The page. Raises `OSError`."""
    page = out.with_suffix(".html")
    write_atomic(page, render("compare.html.j2", c=found))
    return page
