"""Runs beside one another: settings that differ, results, and tests of the held-out scores.

Runs that differ by their seed alone are one side. Where a side has several runs, sides are compared over their runs,
each with the first; p-values of several comparisons are adjusted together (Holm 1979). One run of each setting is no
evidence for the setting: then, and of seeds alone, the answers of single runs are compared on the same prompts, and
nothing is called significant. All is read at the last step at which all runs have a validation, else at their ends.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

from launcher.config import diff
from launcher.config.descriptions import written
from launcher.core.events import HeldOutScores
from launcher.core.metrics import HeldOut, better, label
from launcher.core.numbers import compact
from launcher.core.problems import Problem, Problems
from launcher.health.paired import (
    ALPHA,
    PromptKey,
    ScoreDifference,
    by_prompt,
    compare_paired,
    compare_replicates,
    compare_unpaired,
    holm,
    pairs_of,
)
from launcher.monitor.console import clock
from launcher.reports.measures import score_trace
from launcher.reports.text import setting_text
from launcher.runs import store
from launcher.runs.folder import Folder
from launcher.views.read import LogOrRun, find, run_in
from launcher.views.record import RunRecord, record_of
from launcher.views.runs import status_word

MOST_SOURCES, MOST_SETTINGS = 20, 300
MOST_NAMED = 3  # settings that name a side; the table has all
ENOUGH = 0.5  # share of held-out prompts that must have a score in both runs for a paired test
OWN = ("trainer.project_name", "trainer.experiment_name")  # these differ in any two runs
SEEDS = ("seed",)
ABSENT = "-"
NOT_TESTED = "the difference is not tested, as the runs have no held-out metric in common"
NO_EVIDENCE = (
    "one run of each setting is no evidence for the setting, as another seed may differ as much; "
    "use 3 seeds of each: rlrun train -m ... seed=0,1,2"
)


NamedRun = tuple[str, RunRecord]
Sides = Mapping[str, Sequence[RunRecord]]
"""The runs of each setting by a letter, in the order in which they were given."""
TableRow = tuple[str, ...]
"""The name of a setting or result, and its value in each run or side."""


@dataclass(frozen=True)
class ScoreTest:
    """Whether side or run `b` differs from `a`."""

    a: str
    b: str
    source: str
    """A data source; empty for all together."""
    steps: tuple[int, int]
    metric: str
    found: ScoreDifference
    runs: tuple[int, int] = (1, 1)
    """Of each side; a setting is judged only where one has several."""
    p_adjusted: float | None = None
    comparisons: int = 1

    @property
    def differs(self) -> bool:
        return self.p_adjusted is not None and self.p_adjusted < ALPHA

    @property
    def significant(self) -> bool:
        """Whether the difference is evidence for the setting."""
        return self.differs and max(self.runs) > 1

    @property
    def outcome(self) -> str:
        """`better` or `worse`; empty where the difference may be chance, or that of another seed."""
        if not self.significant:
            return ""
        return "worse" if (self.found.value < 0) != (better(self.metric) == "down") else "better"

    @property
    def text(self) -> str:
        """`B - A at step 120: +0.12 (0.65 and 0.53): B is better, significant (...)`"""
        a, b = self.steps
        steps = f"at step {b}" if a == b else f"at steps {b} and {a}"
        source, found = f" on {self.source}" if self.source else "", self.found
        change = f"{self.b} - {self.a}{source} {steps}: {found.value:+.4g} ({compact(found.b)} and {compact(found.a)})"
        if self.p_adjusted is None or found.low is None or found.high is None:
            return f"{change}: not tested, as no interval is known"
        how = f"{found.method} on {found.items} items" if found.paired else "not paired: from two intervals"
        if found.freedom:
            counts = " and ".join(map(str, reversed(self.runs)))
            how = f"{found.method}: {counts}, {found.freedom:.3g} degrees of freedom"
        p_text = f"= {self.p_adjusted:.2g}" if self.p_adjusted >= 1e-4 else "< 0.0001"
        if max(self.runs) > 1:
            outcome = f"{self.b} is {self.outcome}, significant" if self.outcome else "not significant"
        else:
            outcome = f"the answers of these two runs {'differ' if self.differs else 'may differ by chance'}"
        more = f"; p is adjusted for {self.comparisons} comparisons" if self.comparisons > 1 else ""
        return f"{change}: {outcome} (95 % interval {found.low:+.3g} to {found.high:+.3g}, p {p_text}, {how}){more}"

    @property
    def node(self) -> dict[str, Any]:
        found = {"difference": self.found.value, "paired": self.found.paired, "significant": self.significant}
        return {**asdict(self), **found}


@dataclass(frozen=True)
class Comparison:
    """What the terminal shows."""

    sides: Sides
    settings: list[TableRow]
    """Those that differ."""
    results: list[TableRow]
    tests: list[ScoreTest]
    notes: list[str]
    """What could not be read."""
    remarks: list[str]

    def label(self, letter: str) -> str:
        """The settings that make the side what it is, such as `optim.lr=1e-05`; empty where these are many."""
        place = list(self.sides).index(letter)
        settings = [f"{name}={values[place]}" for name, *values in self.settings if name not in SEEDS]
        return ", ".join(settings) if len(settings) <= MOST_NAMED else ""

    @property
    def node(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "runs": {letter: [record.name for record in side] for letter, side in self.sides.items()},
            "settings": {name: dict(zip(self.sides, values, strict=True)) for name, *values in self.settings},
            "results": {name: dict(zip(self.sides, values, strict=True)) for name, *values in self.results},
            "tests": [test.node for test in self.tests],
            "notes": self.notes,
            "remarks": self.remarks,
        }


def compare_runs(names: Sequence[str], root: Path) -> Comparison:
    """As `compare`, of the runs, logs and sweeps of these names. Raises `Problems` where a name means none of them."""
    return compare([source for name in names for source in _find_sources(name, root)])


def compare(sources: Sequence[LogOrRun]) -> Comparison:
    """Read and compare runs. Raises `Problems` where one was given twice, there is one alone, or too many settings."""
    if len({source.folder.path.resolve() for source in sources}) < len(sources):
        raise Problems(Problem("compare", "a run was given twice", "use different runs"))
    if len(sources) < 2:
        raise Problems(Problem("compare", f"{'1' if sources else 'no'} run was given", "use two or more"))
    records = [record_of(source) for source in sources]
    notes = [f"{record.name}: {line}" for record in records for line in record.unread]
    rows, problems = differing_settings(records)
    groups = _group_by_settings(rows, len(records))
    if len(groups) > len(string.ascii_uppercase):
        raise Problems(Problem("compare", f"the runs have {len(groups)} settings", "use at most 26"))
    groups_by_letter = dict(zip(string.ascii_uppercase, groups, strict=False))
    sides = {letter: [records[place] for place in group] for letter, group in groups_by_letter.items()}
    settings = [(name, *(_joined(values[n] for n in group) for group in groups)) for name, *values in rows]
    tests, remarks = judge_scores(sides)
    return Comparison(sides, settings, list(_results(sides)), tests, [*notes, *problems], remarks)


def _find_sources(name: str, root: Path) -> list[LogOrRun]:
    """The log or run of that name, or those runs of the sweep of that name that have started."""
    sweep = store.named(name, root, "sweep.json")
    if sweep is None:
        return [find(name, root)]
    event_logs = sorted(sweep.path.parent.glob(f"{sweep.path.name}-*/events.jsonl"))
    return [run_in(Folder(path.parent)) for path in event_logs]


def _group_by_settings(rows: Sequence[TableRow], count: int) -> list[list[int]]:
    """Indices of the runs of each side: runs whose settings are equal but for the seed."""
    groups = dict[tuple[str, ...], list[int]]()
    for place in range(count):
        key = tuple(values[place] for name, *values in rows if name not in SEEDS)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def differing_settings(records: Sequence[RunRecord]) -> tuple[list[TableRow], list[str]]:
    """Settings in which any run differs from the first, and what could not be read. The settings of another program's
    log are unknown, so it differs from all other runs."""
    parsed, problems = dict[int, diff.Side](), list[str]()
    for place, record in enumerate(records):
        if record.of_log:
            continue
        try:
            parsed[place] = diff.side_of_run(record.name, record.folder.spec, record.folder.words)
        except Problems as error:
            problems += [f"{record.name}: its settings are left out: {line}" for line in error.lines]
    order = dict[str, None]()
    for other in list(parsed.values())[1:]:
        differing = diff.rows(next(iter(parsed.values())), other)
        order |= {row.name: None for row in differing if row.name not in OWN}
    rows: list[TableRow] = [
        (name, *(_cell(parsed.get(place), name) for place in range(len(records))))
        for name in list(order)[:MOST_SETTINGS]
    ]
    if any(record.of_log for record in records):
        rows.append(("log", *(record.name if record.of_log else ABSENT for record in records)))
    return rows, problems


def _cell(side: diff.Side | None, name: str) -> str:
    cell = side.cells.get(name) if side else None
    return setting_text(name, written(cell.value)) if cell else ABSENT


# ---- tests


def judge_scores(sides: Sides) -> tuple[list[ScoreTest], list[str]]:
    """Each side against the first over their runs, or each run against the first where there is one of each setting, or
    one setting; with adjusted p-values, and remarks."""
    tests, remarks = list[ScoreTest](), list[str]()
    if len(sides) > 1 and any(len(side) > 1 for side in sides.values()):
        tests, remarks = _test_settings(sides)
    else:
        letters = sides if len(sides) > 1 else {f"A{number}": [run] for number, run in enumerate(sides["A"], start=1)}
        first, *others = ((letter, side[0]) for letter, side in letters.items())
        for other in others:
            pair_tests, notes = _test_pair(first, other)
            tests, remarks = [*tests, *pair_tests], [*remarks, *notes]
        remarks.append(NO_EVIDENCE if len(sides) > 1 else _noise_remark(sides["A"]))
    tested = [test for test in tests if test.found.p is not None]
    adjusted = dict(zip(map(id, tested), holm([test.found.p or 0.0 for test in tested]), strict=True))
    return [replace(test, p_adjusted=adjusted.get(id(test)), comparisons=len(tested)) for test in tests], remarks


def _noise_remark(runs: Sequence[RunRecord]) -> str:
    """The remark on runs that differ by their seed alone: the noise between them."""
    text = "these runs have equal settings but for the seed: what differs is the noise between runs"
    validations = common_validations(runs)
    if not validations:
        return text
    spread = stdev(validation.value for validation in validations)
    return f"{text}; the standard deviation of their {label(validations[0].name)} is {spread:.2g} ({len(runs)} runs)"


def _test_settings(sides: Sides) -> tuple[list[ScoreTest], list[str]]:
    runs = [run for side in sides.values() for run in side]
    validations = common_validations(runs)
    if not validations:
        return [], [NOT_TESTED]
    at = {run.name: validation for run, validation in zip(runs, validations, strict=True)}
    metric, remarks = validations[0].name, list[str]()
    scores = {letter: [at[run.name].value for run in side] for letter, side in sides.items()}
    (first, base), *others = scores.items()
    single = [letter for letter, side in sides.items() if len(side) < 2]
    if single:
        remarks.append(f"{', '.join(single)}: one run, so the noise between runs is that of the other settings")
    tests = [
        ScoreTest(
            first, letter, "", (at[sides[first][0].name].step, at[sides[letter][0].name].step), metric,
            compare_replicates(base, side, list(scores.values())), (len(base), len(side)),
        )
        for letter, side in others
    ]  # fmt: skip
    return tests, remarks


def _test_pair(one: NamedRun, other: NamedRun) -> tuple[list[ScoreTest], list[str]]:
    """The tests of two runs: one of all prompts and, where they are paired, one of each source; and remarks."""
    pair, validations = f"{other[0]} - {one[0]}", common_validations([one[1], other[1]])
    if not validations:
        return [], [f"{pair}: {NOT_TESTED}"]
    a, b = validations
    test = partial(ScoreTest, one[0], other[0], steps=(a.step, b.step), metric=a.name)
    scores = prompt_scores(one[1], a), prompt_scores(other[1], b)
    pairs, logged = pairs_of(*scores), max(map(len, scores))
    if not pairs or len(pairs) < ENOUGH * logged:
        why = f"only {len(pairs)} held-out prompts have a {label(a.name)} of their own in both logs"
        return [test("", found=compare_unpaired(a, b))], [f"{pair}: the test is not paired, as {why}"]
    unpaired = logged - len(pairs)
    remarks = [f"{pair}: {unpaired} prompts lack a score in one of the runs and are left out"] if unpaired else []
    sources = sorted({source for source, _, _ in pairs})[:MOST_SOURCES]
    groups = {"": pairs} | {name: [each for each in pairs if each[0] == name] for name in sources if len(sources) > 1}
    return [
        test(name, found=compare_paired([x for _, x, _ in group], [y for _, _, y in group]))
        for name, group in groups.items()
    ], remarks


def prompt_scores(record: RunRecord, at: HeldOut) -> dict[PromptKey, float]:
    """The mean score, or the loss, of each prompt in a validation; empty where they are not logged."""
    metric = "loss" if at.name == "val/loss" else "score"
    kept = (record.results.loss if metric == "loss" else record.results.score).rows
    events: Iterable[HeldOutScores] = kept.get(at.step, ())
    if kept and not events:
        scores = (event for event in record.events() if isinstance(event, HeldOutScores))
        events = (event for event in scores if (event.step, event.metric) == (at.step, metric))
    return by_prompt(events)


def common_validations(runs: Sequence[RunRecord]) -> list[HeldOut]:
    """Each run's validation at the last step at which all runs have one, or, where there is none, each run's last
    validation; empty where they measure different metrics."""
    by_step = [{each.step: each for each in run.validations} for run in runs]
    for step in sorted(set.intersection(*(set(steps) for steps in by_step)) - {0}, reverse=True):
        validations = [steps[step] for steps in by_step]
        if len({each.name for each in validations}) == 1:
            return validations
    ends = [run.final for run in runs if run.final]
    return ends if len(ends) == len(runs) and len({each.name for each in ends}) == 1 else []


# ---- tables


def _results(sides: Sides) -> Iterator[TableRow]:
    columns: Mapping[str, Callable[[RunRecord], str]] = {
        "outcome": lambda record: record.verdict.kind,
        "status": lambda record: status_word(record.state),
        "steps": lambda record: f"{record.state.step} of {record.state.steps}",
        "held out, last": lambda record: _held_out_text(record.state.last),
        "held out, best": lambda record: _held_out_text(record.state.best),
        "held out, first": lambda record: _held_out_text(record.state.first),
        "training score, last steps": _training_score,
        "duration": lambda record: clock(record.state.elapsed_s),
        "seconds per step": lambda record: f"{record.step_seconds:.3g}" if record.step_seconds else ABSENT,
        "tokens": lambda record: f"{record.tokens:,.0f}" if record.tokens else ABSENT,
        "restarts": lambda record: str(record.state.restarts),
        "findings": lambda record: str(record.alert_count),
    }
    for name, text in columns.items():
        yield name, *(_joined(map(text, side)) for side in sides.values())


def _training_score(record: RunRecord) -> str:
    found = score_trace(record)
    return f"{label(found[0])} {compact(found[1].late())}" if found else ABSENT


def _held_out_text(measured: HeldOut | None) -> str:
    return f"{label(measured.name)} {measured.shown} at {measured.step}" if measured else ABSENT
